#include "treadle/core/group/algorithm.h"

namespace treadle::group {

bool isAlgorithm(uint8_t value) {
  return value >= static_cast<uint8_t>(Algorithm::kExchange) && value <= static_cast<uint8_t>(Algorithm::kHierarchical);
}

std::string_view nameOf(Algorithm algorithm) {
  switch (algorithm) {
    case Algorithm::kAutomatic: break;
    case Algorithm::kExchange: return "exchange";
    case Algorithm::kTree: return "tree";
    case Algorithm::kRoot: return "root";
    case Algorithm::kRing: return "ring";
    case Algorithm::kCirculant: return "circulant";
    case Algorithm::kDirect: return "direct";
    case Algorithm::kHierarchical: return "hierarchical";
  }
  return "automatic";
}

}  // namespace treadle::group

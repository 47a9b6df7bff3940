#include "treadle/core/group/algorithm.h"

namespace treadle::group {

bool isAlgorithm(uint8_t value) {
  return value >= static_cast<uint8_t>(Algorithm::kExchange) && value <= static_cast<uint8_t>(Algorithm::kHierarchical);
}

bool sendsPartialResults(Algorithm algorithm) {
  switch (algorithm) {
    case Algorithm::kTree:
    case Algorithm::kRing:
    case Algorithm::kCirculant:
    case Algorithm::kHierarchical: return true;
    case Algorithm::kAutomatic:
    case Algorithm::kExchange:
    case Algorithm::kRoot:
    case Algorithm::kDirect: break;
  }
  return false;
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

#pragma once
// A hash that is the same on every worker, for what is compared or derived from a text on several of them.

#include <cstdint>
#include <string_view>

namespace treadle::base {

// FNV-1a with 64 bits (Fowler, Noll, Vo). It is no protection against somebody who looks for another text of the same
// hash.
constexpr uint64_t fnv1a(std::string_view text) {
  uint64_t hash = 0xcbf29ce484222325;
  for (char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return hash;
}

}  // namespace treadle::base

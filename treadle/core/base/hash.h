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

// The last steps of MurmurHash3: each bit of `hash` changes half of those of the result. FNV-1a mixes its high bits
// little.
constexpr uint64_t mixed(uint64_t hash) {
  hash = (hash ^ (hash >> 33)) * 0xff51afd7ed558ccd;
  hash = (hash ^ (hash >> 33)) * 0xc4ceb9fe1a85ec53;
  return hash ^ (hash >> 33);
}

}  // namespace treadle::base

#pragma once
// Bytes that tests send and compare, in blocks: under a sanitizer a loop over single bytes takes most of a test's time.

#include <cstring>
#include <vector>

#include "tests/support/seeds.h"
#include "treadle/core/base/buffer.h"

namespace treadle::test {

inline void fillRandomly(Random& random, MutableBytes bytes) {
  while (!bytes.empty()) {
    const uint64_t word = random();
    const size_t size = std::min(bytes.size(), sizeof(word));
    std::memcpy(bytes.data(), &word, size);
    bytes = bytes.subspan(size);
  }
}

inline std::vector<std::byte> randomBytes(Random& random, size_t size) {
  std::vector<std::byte> bytes(size);
  fillRandomly(random, bytes);
  return bytes;
}

inline bool same(Bytes one, Bytes other) {
  return one.size() == other.size() && (one.empty() || std::memcmp(one.data(), other.data(), one.size()) == 0);
}

inline bool allBytesAre(Bytes bytes, int value) {
  return bytes.empty() ||
         (bytes.front() == static_cast<std::byte>(value) && same(bytes.subspan(1), bytes.first(bytes.size() - 1)));
}

}  // namespace treadle::test

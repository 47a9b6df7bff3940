#pragma once
// A hash of 128 bits that is the same on every worker, for texts and tensors that workers compare without sending them:
// two that differ have the same hash with a probability of 2^-128. It is no protection against a program that looks for
// two with the same hash. Pure functions; any thread.

#include <cstdint>
#include <string>

#include "treadle/core/base/buffer.h"

namespace treadle::ddp {

struct Hash128 {
  uint64_t first = 0, second = 0;
  bool operator==(const Hash128&) const = default;
};

// MurmurHash3_x64_128 (A. Appleby, 2011) with `before` in place of its seed, so that hashes of a sequence can be
// chained. {} gives the published values for the seed 0.
Hash128 hashed(const Hash128& before, Bytes bytes);

// 32 digits.
std::string inHex(const Hash128& hash);

}  // namespace treadle::ddp

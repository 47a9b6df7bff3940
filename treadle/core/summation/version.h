#pragma once
// How often a running sum contains the data of each worker: a version vector (D. S. Parker et al., "Detection of mutual
// inconsistency in distributed systems", 1983). Of two answers about one part, the one with more data contains all of
// the other's. Plain values.

#include <cstdint>
#include <span>
#include <vector>

#include "treadle/core/base/buffer.h"
#include "treadle/core/summation/frame.h"

namespace treadle::summation {

using Version = std::vector<uint64_t>;  // by worker

// As it travels in a frame, little-endian.
inline constexpr size_t kMostVersionWorkers = kMostPieceBytes / sizeof(uint64_t);
inline constexpr size_t versionBytes(size_t workers) { return workers * sizeof(uint64_t); }
inline MutableBytes bytesOf(Version& version) { return std::as_writable_bytes(std::span(version)); }

}  // namespace treadle::summation

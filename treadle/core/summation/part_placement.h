#pragma once
// Which machine sums which part of which tensor. By shares, almost exactly; by hash, as BytePS does it, to compare.
// Pure.

#include <cstdint>
#include <optional>

#include "treadle/core/summation/shares.h"

namespace treadle::summation {

// A machine of a job: the workers have the numbers from 0 on, the servers those after them.
using Machine = size_t;

// Bytes [begin, end) of a tensor, summed by one machine.
struct Part {
  size_t tensor = 0;
  uint64_t begin = 0, end = 0;
  Machine machine = 0;

  uint64_t bytes() const { return end - begin; }
  bool operator==(const Part&) const = default;
};

// A larger tensor is cut, so that several machines sum it at once.
inline constexpr uint64_t kMostPartBytes = uint64_t{4} << 20;
// No cut for the sake of a share makes a smaller part: each part costs some frames in both directions.
inline constexpr uint64_t kLeastPartBytes = uint64_t{32} << 10;
// Cuts lie on multiples of this many bytes, so no element is cut and the sums of parts stay aligned.
inline constexpr uint64_t kCutAlignment = 64;

// Goes through the tensors in their order, which is about that in which they are ready, and gives bytes to the machine
// that lacks most of its share of all bytes up to the end of that tensor. So of the first tensors, however many, no
// machine has more than its share and 2 kLeastPartBytes, and what is under way at a moment keeps most machines busy.
// The parts come in the order of tensors and bytes, cover each byte once, and depend on nothing but the arguments.
std::vector<Part> placeInOrder(const std::vector<uint64_t>& tensorBytes, const Shares& shares);

// Where the parts of a machine go that is lost: for each of them, in their order, one that is left. The largest parts
// first, each to the machine that lacks most of its share of all bytes, whole. `isLost` (by machine) has this one and
// earlier ones.
std::vector<Machine> placeAnew(const std::vector<Part>& parts, Machine lost, const Shares& shares,
                               const std::vector<bool>& isLost);

// As BytePS 0.2.5 with BYTEPS_ENABLE_MIXED_MODE does it (byteps/common/global.cc): parts of at most 4,096,000 bytes. A
// hash of the part's key, modulo 101, decides by the shares of equal machines whether a server or a worker sums it, and
// a hash of that which one. Nothing where that rule is undefined: more servers than workers, or more than 101 machines.
std::optional<std::vector<Part>> placeByHash(const std::vector<uint64_t>& tensorBytes, size_t workers, size_t servers);

// The share that each machine has of the bytes of all parts. There is at least one byte.
Shares sharesOf(const std::vector<Part>& parts, size_t workers, size_t servers);

}  // namespace treadle::summation

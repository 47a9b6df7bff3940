#pragma once
// What an algorithm has to know of an operation to plan what one member does. Pure values.

#include "treadle/core/group/blocks.h"

namespace treadle::group {

struct Shape {
  int size = 1;  // members
  int self = 0;  // the member whose plan it is
  int root = 0;
  uint64_t count = 0;  // elements
  // Elements of each member's block, by rank. In an all-to-all this member sends `counts[peer]` elements to a peer and
  // receives `incoming[peer]` from it. Without any the elements are cut as evenly as possible.
  std::vector<uint64_t> counts = {}, incoming = {};

  // Ranks around the ring, from this member on.
  int after(int steps) const { return (self + steps) % size; }
  int before(int steps) const { return after(size - steps); }
  int right() const { return after(1); }
  int left() const { return before(1); }
  Range all() const { return {0, count}; }
  Blocks blocks() const { return counts.empty() ? Blocks(count, size) : Blocks(counts); }
  Blocks incomingBlocks() const { return incoming.empty() ? blocks() : Blocks(incoming); }
};

}  // namespace treadle::group

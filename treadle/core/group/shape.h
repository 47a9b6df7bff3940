#pragma once
// What an algorithm has to know of an operation to plan what one member does. Pure values.

#include "treadle/core/group/blocks.h"

namespace treadle::group {

struct Shape {
  int size = 1;  // members
  int self = 0;  // of whom the plan is wanted
  int root = 0;
  uint64_t count = 0;  // elements

  // Ranks around the ring, from this member on.
  int after(int steps) const { return (self + steps) % size; }
  int right() const { return after(1); }
  int left() const { return after(size - 1); }
  Range all() const { return {0, count}; }
};

}  // namespace treadle::group

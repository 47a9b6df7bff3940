#pragma once
// How the elements of an operation are cut into a block for each member. Pure values.

#include <span>

#include "treadle/core/group/plan.h"

namespace treadle::group {

class Blocks {
 public:
  // If `count` elements do not divide evenly, the first blocks have one more.
  Blocks(uint64_t count, int members) {
    const auto parts = static_cast<uint64_t>(members);
    for (uint64_t member = 0; member < parts; ++member) add(count / parts + (member < count % parts ? 1 : 0));
  }
  // By rank in the group.
  explicit Blocks(std::span<const uint64_t> counts) {
    for (uint64_t count : counts) add(count);
  }

  Range operator[](int member) const {
    const auto rank = static_cast<size_t>(member);
    return {bounds_[rank], bounds_[rank + 1]};
  }
  uint64_t count() const { return bounds_.back(); }

 private:
  void add(uint64_t count) { bounds_.push_back(bounds_.back() + count); }

  std::vector<uint64_t> bounds_{0};
};

}  // namespace treadle::group

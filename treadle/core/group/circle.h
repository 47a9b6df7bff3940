#pragma once
// The rounds of J. L. Träff's reduce-scatter and all-gather (circulant.h), among all members of a group or some of
// them. Pure.

#include <functional>
#include <vector>

#include "treadle/core/group/blocks.h"

namespace treadle::group {

// How many blocks a member has sums of before a round of a reduce-scatter, and after it.
struct Round {
  int before, after;
  int moved() const { return before - after; }
};

// The rounds of a reduce-scatter, the first one first; an all-gather has them backwards.
std::vector<Round> roundsOf(int members);

// Members that have a block each, as one of them sees them. Blocks are numbered from this member's own on, around the
// circle.
class Circle {
 public:
  // `ranks` in the group, in the order of their blocks. This member is at `place` among them. The first block begins at
  // the element `begin`.
  Circle(std::vector<int> ranks, int place, Blocks blocks, uint64_t begin = 0);

  int size() const { return static_cast<int>(ranks_.size()); }
  // The elements of this member's block.
  Range own() const { return rangeOf(place_, place_ + 1); }
  // The elements of the blocks [from, to): where they go around the last member there are two ranges. None is empty.
  std::vector<Range> elements(int from, int to) const;

  // Where the member keeps the sums of some elements while it has sums of `left` blocks.
  using PlaceOf = std::function<Place(const Range& elements, int left)>;

  // A round sends the upper half of the blocks that the member still has sums of to one peer, and adds what comes from
  // another peer to the lower blocks, until the member has the sums of its own block. It waits for all that the round
  // before brings, and the first one for `after`. The last round does `last` (Action::kReduce or kReduceLast). Returns
  // the last transfer that brings anything, or `after`.
  Received addReduceScatter(Plan& plan, Received after, Action last, const PlaceOf& placeOf) const;

  // The same rounds backwards, in the output, which has this member's block once `after` has been taken: a round sends
  // the lower blocks to the peer from which their sums would have come, and gets the upper ones.
  Received addAllGather(Plan& plan, Received after) const;

 private:
  int rankAfter(int steps) const { return ranks_[static_cast<size_t>((place_ + steps) % size())]; }
  int rankBefore(int steps) const { return rankAfter(size() - steps); }
  // Of the blocks at these places.
  Range rangeOf(int from, int to) const { return {begin_ + blocks_[from].begin, begin_ + blocks_[to - 1].end}; }

  const std::vector<int> ranks_;
  const int place_;
  const Blocks blocks_;
  const uint64_t begin_;
};

}  // namespace treadle::group

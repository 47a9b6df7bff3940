#include "treadle/core/group/circulant.h"

#include <algorithm>

namespace treadle::group {
namespace {

// How many blocks a member has sums of before a round, and after it.
struct Round {
  int before, after;
  int moved() const { return before - after; }
};

std::vector<Round> roundsOf(int members) {
  std::vector<Round> rounds;
  for (int blocks = members; blocks > 1; blocks = rounds.back().after) rounds.push_back({blocks, (blocks + 1) / 2});
  return rounds;
}

// The elements of the blocks [from, to), counted from the member's own on: around the last rank there are two ranges.
std::vector<Range> elementsOf(const Shape& shape, const Blocks& blocks, int from, int to) {
  std::vector<Range> ranges;
  if (from == to) return ranges;
  const int first = shape.after(from), end = first + to - from;
  ranges.push_back({blocks[first].begin, blocks[std::min(end, shape.size) - 1].end});
  if (end > shape.size) ranges.push_back({0, blocks[end - shape.size - 1].end});
  std::erase_if(ranges, [](const Range& range) { return range.count() == 0; });
  return ranges;
}

// `placeOf(range, left)`: where the member keeps the sums of some elements while it has sums of `left` blocks. A round
// waits for all that the round before brings. Returns the last transfer that brings anything.
template <class PlaceOf>
Received addReduceScatter(Plan& plan, const Shape& shape, PlaceOf placeOf) {
  const Blocks blocks = shape.blocks();
  Received last;
  for (const Round& round : roundsOf(shape.size)) {
    const Received before = last;
    const Action action = round.after == 1 ? Action::kReduceLast : Action::kReduce;
    for (const Range& range : elementsOf(shape, blocks, round.after, round.before))
      plan.send(shape.after(round.after), placeOf(range, round.before), before);
    for (const Range& range : elementsOf(shape, blocks, 0, round.moved())) {
      const Place operand = placeOf(range, round.before), sum = placeOf(range, round.after);
      last = plan.reduce(shape.before(round.after), action, operand, sum, before).whole();
    }
  }
  return last;
}

// In the output, which has this member's block once `last` has been taken.
void addAllGather(Plan& plan, const Shape& shape, Received last) {
  const Blocks blocks = shape.blocks();
  const std::vector<Round> rounds = roundsOf(shape.size);
  for (auto round = rounds.rbegin(); round != rounds.rend(); ++round) {
    const Received before = last;
    for (const Range& range : elementsOf(shape, blocks, 0, round->moved()))
      plan.send(shape.before(round->after), {Area::kOutput, range}, before);
    for (const Range& range : elementsOf(shape, blocks, round->after, round->before))
      last = plan.receive(shape.after(round->after), {Area::kOutput, range}, before).whole();
  }
}

}  // namespace

Plan circulantReduceScatter(const Shape& shape) {
  const Blocks blocks = shape.blocks();
  const Round first = roundsOf(shape.size).front();
  // The scratch has the blocks in the order of their numbers, the output the first one alone.
  const auto offsetOf = [&, own = blocks[shape.self].begin](uint64_t element) {
    return element >= own ? element - own : element + blocks.count() - own;
  };
  const auto placeOf = [&](const Range& range, int left) {
    if (left == shape.size) return Place{Area::kInput, range};
    const uint64_t begin = offsetOf(range.begin);
    return Place{left == 1 ? Area::kOutput : Area::kScratch, {begin, begin + range.count()}};
  };
  Plan plan;
  if (first.after > 1)
    for (const Range& range : elementsOf(shape, blocks, 0, first.after)) plan.scratch += range.count();
  // With an odd number of members the first round neither sends the middle block nor adds to it.
  for (const Range& range : elementsOf(shape, blocks, first.moved(), first.after))
    plan.copies.push_back({placeOf(range, first.before), placeOf(range, first.after)});
  addReduceScatter(plan, shape, placeOf);
  return plan;
}

Plan circulantAllGather(const Shape& shape) {
  const Range own = shape.blocks()[shape.self];
  Plan plan;
  plan.copies.push_back({{Area::kInput, {0, own.count()}}, {Area::kOutput, own}});
  addAllGather(plan, shape, {});
  return plan;
}

Plan circulantAllReduce(const Shape& shape) {
  Plan plan;
  const Received sums =
      addReduceScatter(plan, shape, [](const Range& range, int) { return Place{Area::kOutput, range}; });
  addAllGather(plan, shape, sums);
  return plan;
}

}  // namespace treadle::group

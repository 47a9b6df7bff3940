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
  const int first = shape.after(from), end = first + to - from;
  ranges.push_back({blocks[first].begin, blocks[std::min(end, shape.size) - 1].end});
  if (end > shape.size) ranges.push_back({0, blocks[end - shape.size - 1].end});
  std::erase_if(ranges, [](const Range& range) { return range.count() == 0; });
  return ranges;
}

}  // namespace

Plan circulantAllReduce(const Shape& shape) {
  const Blocks blocks = shape.blocks();
  const std::vector<Round> rounds = roundsOf(shape.size);
  const auto place = [](const Range& range) { return Place{Area::kOutput, range}; };
  Plan plan;
  Received last;  // of the rounds before
  for (const Round& round : rounds) {
    const Received before = last;
    const Action action = round.after == 1 ? Action::kReduceLast : Action::kReduce;
    for (const Range& range : elementsOf(shape, blocks, round.after, round.before))
      plan.send(shape.after(round.after), place(range), before);
    for (const Range& range : elementsOf(shape, blocks, 0, round.moved()))
      last = plan.reduce(shape.before(round.after), action, place(range), place(range), before).whole();
  }
  for (auto round = rounds.rbegin(); round != rounds.rend(); ++round) {
    const Received before = last;
    for (const Range& range : elementsOf(shape, blocks, 0, round->moved()))
      plan.send(shape.before(round->after), place(range), before);
    for (const Range& range : elementsOf(shape, blocks, round->after, round->before))
      last = plan.receive(shape.after(round->after), place(range), before).whole();
  }
  return plan;
}

}  // namespace treadle::group

#include "treadle/core/group/circle.h"

#include <algorithm>
#include <utility>

namespace treadle::group {

std::vector<Round> roundsOf(int members) {
  std::vector<Round> rounds;
  for (int blocks = members; blocks > 1; blocks = rounds.back().after) rounds.push_back({blocks, (blocks + 1) / 2});
  return rounds;
}

Circle::Circle(std::vector<int> ranks, int place, Blocks blocks, uint64_t begin)
    : ranks_(std::move(ranks)), place_(place), blocks_(std::move(blocks)), begin_(begin) {}

std::vector<Range> Circle::elements(int from, int to) const {
  std::vector<Range> ranges;
  if (from == to) return ranges;
  const int first = (place_ + from) % size(), end = first + to - from;
  ranges.push_back(rangeOf(first, std::min(end, size())));
  if (end > size()) ranges.push_back(rangeOf(0, end - size()));
  std::erase_if(ranges, [](const Range& range) { return range.count() == 0; });
  return ranges;
}

Received Circle::addReduceScatter(Plan& plan, Received after, Action last, const PlaceOf& placeOf) const {
  for (const Round& round : roundsOf(size())) {
    const Received before = after;
    const Action action = round.after == 1 ? last : Action::kReduce;
    for (const Range& range : elements(round.after, round.before))
      plan.send(rankAfter(round.after), placeOf(range, round.before), before);
    for (const Range& range : elements(0, round.moved())) {
      const Place operand = placeOf(range, round.before), sum = placeOf(range, round.after);
      after = plan.reduce(rankBefore(round.after), action, operand, sum, before).whole();
    }
  }
  return after;
}

Received Circle::addAllGather(Plan& plan, Received after) const {
  const std::vector<Round> rounds = roundsOf(size());
  for (auto round = rounds.rbegin(); round != rounds.rend(); ++round) {
    const Received before = after;
    for (const Range& range : elements(0, round->moved()))
      plan.send(rankBefore(round->after), {Area::kOutput, range}, before);
    for (const Range& range : elements(round->after, round->before))
      after = plan.receive(rankAfter(round->after), {Area::kOutput, range}, before).whole();
  }
  return after;
}

}  // namespace treadle::group

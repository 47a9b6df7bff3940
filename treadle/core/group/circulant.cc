#include "treadle/core/group/circulant.h"

#include <numeric>

#include "treadle/core/group/circle.h"

namespace treadle::group {
namespace {

Circle circleOf(const Shape& shape) {
  std::vector<int> ranks(static_cast<size_t>(shape.size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return Circle(std::move(ranks), shape.self, shape.blocks());
}

}  // namespace

Plan circulantReduceScatter(const Shape& shape) {
  const Circle circle = circleOf(shape);
  const Round first = roundsOf(shape.size).front();
  // The scratch has the blocks in the order of their numbers, the output the first one alone.
  const auto offsetOf = [own = circle.own().begin, count = shape.blocks().count()](uint64_t element) {
    return element >= own ? element - own : element + count - own;
  };
  const auto placeOf = [&](const Range& range, int left) {
    if (left == shape.size) return Place{Area::kInput, range};
    const uint64_t begin = offsetOf(range.begin);
    return Place{left == 1 ? Area::kOutput : Area::kScratch, {begin, begin + range.count()}};
  };
  Plan plan;
  if (first.after > 1)
    for (const Range& range : circle.elements(0, first.after)) plan.scratch += range.count();
  // With an odd number of members the first round neither sends the middle block nor adds to it.
  for (const Range& range : circle.elements(first.moved(), first.after))
    plan.copies.push_back({placeOf(range, first.before), placeOf(range, first.after)});
  circle.addReduceScatter(plan, {}, Action::kReduceLast, placeOf);
  return plan;
}

Plan circulantAllGather(const Shape& shape) {
  const Circle circle = circleOf(shape);
  Plan plan;
  plan.copies.push_back({{Area::kInput, {0, circle.own().count()}}, {Area::kOutput, circle.own()}});
  circle.addAllGather(plan, {});
  return plan;
}

Plan circulantAllReduce(const Shape& shape) {
  const Circle circle = circleOf(shape);
  Plan plan;
  const Received sums = circle.addReduceScatter(plan, {}, Action::kReduceLast,
                                                [](const Range& range, int) { return Place{Area::kOutput, range}; });
  circle.addAllGather(plan, sums);
  return plan;
}

}  // namespace treadle::group

#include "treadle/core/group/tree.h"

#include "treadle/core/group/binomial_tree.h"
#include "treadle/core/group/direct.h"

namespace treadle::group {

Plan treeAllReduce(const Shape& shape) {
  const bool isTop = shape.self == 0;
  const std::vector<int> children = childrenOf(shape.self, shape.size);
  const Place sum{Area::kOutput, shape.all()};
  Plan plan;
  Place operand{Area::kInput, shape.all()};
  Received last;
  for (int child : children) {
    const bool whole = isTop && child == children.back();
    last = plan.reduce(child, whole ? Action::kReduceLast : Action::kReduce, operand, sum, last);
    operand = sum;
  }
  if (!isTop) {
    plan.send(parentOf(shape.self), operand, last);
    last = plan.receive(parentOf(shape.self), sum);
  }
  for (int child : children) plan.send(child, sum, last);
  return plan;
}

Plan treeBroadcast(const Shape& shape) {
  const auto isAbove = [&](int rank) { return rank <= shape.root && shape.root < endOf(rank, shape.size); };
  const Place output{Area::kOutput, shape.all()};
  const Place source{shape.self == shape.root ? Area::kInput : Area::kOutput, shape.all()};
  const std::vector<int> children = childrenOf(shape.self, shape.size);
  Plan plan;
  Received got;
  for (int child : children)
    if (isAbove(child)) got = plan.receive(child, output);
  if (!isAbove(shape.self)) {
    got = plan.receive(parentOf(shape.self), output);
  } else if (shape.self != 0) {
    plan.send(parentOf(shape.self), source, got);
  }
  for (int child : children)
    if (!isAbove(child)) plan.send(child, source, got);
  return plan;
}

Plan rootAllReduce(const Shape& shape) {
  const Place input{Area::kInput, shape.all()}, output{Area::kOutput, shape.all()};
  Plan plan;
  Received got;
  if (shape.self == 0) {
    for (int peer = 1; peer < shape.size; ++peer) got = plan.reduce(peer, Action::kCombine, input, output);
  } else {
    plan.send(0, input);
    got = plan.receive(parentOf(shape.self), output);
  }
  for (int child : childrenOf(shape.self, shape.size)) plan.send(child, output, got);
  // Only rank 0 receives from all.
  for (Channel& channel : plan.channels)
    if (shape.self == 0 || channel.peer == 0) channel.window = directWindow(shape.size);
  return plan;
}

}  // namespace treadle::group

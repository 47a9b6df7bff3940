#include "treadle/core/group/ring.h"

namespace treadle::group {

Plan ringAllReduce(const Shape& shape) {
  const Blocks blocks = shape.blocks();
  const int reducing = shape.size - 1;
  Plan plan;
  Received last;
  for (int step = 0; step < 2 * reducing; ++step) {
    const Place sent{Area::kOutput, blocks[shape.after(2 * shape.size - step)]};
    const Place received{Area::kOutput, blocks[shape.after(2 * shape.size - step - 1)]};
    plan.send(shape.right(), sent, last);
    const Action action = step + 1 < reducing ? Action::kReduce : Action::kReduceLast;
    last =
        step < reducing ? plan.reduce(shape.left(), action, received, received) : plan.receive(shape.left(), received);
  }
  return plan;
}

Plan ringBroadcast(const Shape& shape) {
  Plan plan;
  Received whole;
  const bool isRoot = shape.self == shape.root;
  if (!isRoot) whole = plan.receive(shape.left(), {Area::kOutput, shape.all()});
  if (shape.right() != shape.root)
    plan.send(shape.right(), {isRoot ? Area::kInput : Area::kOutput, shape.all()}, whole);
  return plan;
}

}  // namespace treadle::group

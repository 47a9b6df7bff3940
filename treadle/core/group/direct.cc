#include "treadle/core/group/direct.h"

#include <algorithm>

namespace treadle::group {
namespace {

// Twice a ring's for all others together. So what is under way, and kept, grows with the group only above 17 members.
uint64_t windowOf(const Shape& shape) { return std::max<uint64_t>(1, 16 / static_cast<uint64_t>(shape.size - 1)); }

}  // namespace

Plan directAllReduce(const Shape& shape) {
  const Blocks blocks(shape.count, shape.size);
  const Range own = blocks[shape.self];
  Plan plan;
  // From the right neighbour on, so that the members do not all send to the same one first.
  for (int step = 1; step < shape.size; ++step) {
    const int peer = shape.after(step);
    plan.send(peer, {Area::kInput, blocks[peer]});
    const Received combined = plan.reduce(peer, Action::kCombine, {Area::kInput, own}, {Area::kOutput, own});
    plan.send(peer, {Area::kOutput, own}, combined);
    plan.receive(peer, {Area::kOutput, blocks[peer]});
  }
  plan.setWindow(windowOf(shape));
  return plan;
}

Plan exchangeAllReduce(const Shape& shape) {
  Plan plan;
  for (int step = 1; step < shape.size; ++step) {
    const int peer = shape.after(step);
    plan.send(peer, {Area::kInput, shape.all()});
    plan.reduce(peer, Action::kCombine, {Area::kInput, shape.all()}, {Area::kOutput, shape.all()});
  }
  return plan;
}

Plan exchangeBroadcast(const Shape& shape) {
  Plan plan;
  if (shape.self != shape.root) {
    plan.receive(shape.root, {Area::kOutput, shape.all()});
    return plan;
  }
  for (int step = 1; step < shape.size; ++step) plan.send(shape.after(step), {Area::kInput, shape.all()});
  return plan;
}

}  // namespace treadle::group

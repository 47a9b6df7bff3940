#include "treadle/core/group/direct.h"

#include <algorithm>

namespace treadle::group {
namespace {

Plan withWindow(Plan plan, const Shape& shape) {
  plan.setWindow(directWindow(shape.size));
  return plan;
}

Range ofCount(const Range& range) { return {0, range.count()}; }

// Each member sends the place `sent(peer)` to each peer, where it becomes `received(self)`; its own part it copies. An
// empty place is no transfer.
template <class From, class To>
Plan moved(const Shape& shape, From sent, To received) {
  Plan plan;
  if (sent(shape.self).range.count() > 0) plan.copies.push_back({sent(shape.self), received(shape.self)});
  for (int step = 1; step < shape.size; ++step) {
    const int peer = shape.after(step);
    if (const Place from = sent(peer); from.range.count() > 0) plan.send(peer, from);
    if (const Place to = received(peer); to.range.count() > 0) plan.receive(peer, to);
  }
  return withWindow(std::move(plan), shape);
}

}  // namespace

uint64_t directWindow(int size) { return std::max<uint64_t>(1, 16 / static_cast<uint64_t>(size - 1)); }

Plan directAllReduce(const Shape& shape) {
  const Blocks blocks = shape.blocks();
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
  return withWindow(std::move(plan), shape);
}

Plan directReduce(const Shape& shape) {
  const Blocks blocks = shape.blocks();
  const Range own = blocks[shape.self];
  const bool isRoot = shape.self == shape.root;
  const Place result = isRoot ? Place{Area::kOutput, own} : Place{Area::kScratch, ofCount(own)};
  Plan plan;
  plan.scratch = isRoot ? 0 : own.count();
  for (int step = 1; step < shape.size; ++step) {
    const int peer = shape.after(step);
    plan.send(peer, {Area::kInput, blocks[peer]});
    const Received combined = plan.reduce(peer, Action::kCombine, {Area::kInput, own}, result);
    if (isRoot) plan.receive(peer, {Area::kOutput, blocks[peer]});
    if (peer == shape.root) plan.send(peer, result, combined);
  }
  return withWindow(std::move(plan), shape);
}

Plan directReduceScatter(const Shape& shape) {
  const Blocks blocks = shape.blocks();
  const Range own = blocks[shape.self];
  Plan plan;
  for (int step = 1; step < shape.size; ++step) {
    const int peer = shape.after(step);
    plan.send(peer, {Area::kInput, blocks[peer]});
    plan.reduce(peer, Action::kCombine, {Area::kInput, own}, {Area::kOutput, ofCount(own)});
  }
  return withWindow(std::move(plan), shape);
}

Plan directAllGather(const Shape& shape) {
  const Blocks blocks = shape.blocks();
  const Place own{Area::kInput, ofCount(blocks[shape.self])};
  return moved(shape, [&](int) { return own; }, [&](int peer) { return Place{Area::kOutput, blocks[peer]}; });
}

Plan directGather(const Shape& shape) {
  const Blocks blocks = shape.blocks();
  const Place own{Area::kInput, ofCount(blocks[shape.self])};
  return moved(
      shape, [&](int peer) { return peer == shape.root ? own : Place{}; },
      [&](int peer) { return shape.self == shape.root ? Place{Area::kOutput, blocks[peer]} : Place{}; });
}

Plan directScatter(const Shape& shape) {
  const Blocks blocks = shape.blocks();
  const Place own{Area::kOutput, ofCount(blocks[shape.self])};
  return moved(
      shape, [&](int peer) { return shape.self == shape.root ? Place{Area::kInput, blocks[peer]} : Place{}; },
      [&](int peer) { return peer == shape.root ? own : Place{}; });
}

Plan directAllToAll(const Shape& shape) {
  const Blocks blocks = shape.blocks(), incoming = shape.incomingBlocks();
  return moved(
      shape, [&](int peer) { return Place{Area::kInput, blocks[peer]}; },
      [&](int peer) { return Place{Area::kOutput, incoming[peer]}; });
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

Plan exchangeReduce(const Shape& shape) {
  Plan plan;
  if (shape.self != shape.root) {
    plan.send(shape.root, {Area::kInput, shape.all()});
  } else {
    for (int step = 1; step < shape.size; ++step)
      plan.reduce(shape.after(step), Action::kCombine, {Area::kInput, shape.all()}, {Area::kOutput, shape.all()});
  }
  return withWindow(std::move(plan), shape);
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

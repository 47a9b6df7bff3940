#include "treadle/core/group/direct.h"

#include <algorithm>

namespace treadle::group {
namespace {

// Twice a ring's for all others together. So what is under way, and kept, grows with the group only above 17 members.
Plan withWindow(Plan plan, const Shape& shape) {
  plan.setWindow(std::max<uint64_t>(1, 16 / static_cast<uint64_t>(std::max(1, shape.size - 1))));
  return plan;
}

Range ofCount(const Range& range) { return {0, range.count()}; }

}  // namespace

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
  Plan plan;
  plan.copies.push_back({own, {Area::kOutput, blocks[shape.self]}});
  for (int step = 1; step < shape.size; ++step) {
    const int peer = shape.after(step);
    plan.send(peer, own);
    plan.receive(peer, {Area::kOutput, blocks[peer]});
  }
  return withWindow(std::move(plan), shape);
}

Plan directGather(const Shape& shape) {
  const Blocks blocks = shape.blocks();
  const Place own{Area::kInput, ofCount(blocks[shape.self])};
  Plan plan;
  if (shape.self != shape.root) {
    plan.send(shape.root, own);
  } else {
    plan.copies.push_back({own, {Area::kOutput, blocks[shape.self]}});
    for (int step = 1; step < shape.size; ++step)
      plan.receive(shape.after(step), {Area::kOutput, blocks[shape.after(step)]});
  }
  return withWindow(std::move(plan), shape);
}

Plan directScatter(const Shape& shape) {
  const Blocks blocks = shape.blocks();
  const Place own{Area::kOutput, ofCount(blocks[shape.self])};
  Plan plan;
  if (shape.self != shape.root) {
    plan.receive(shape.root, own);
  } else {
    plan.copies.push_back({{Area::kInput, blocks[shape.self]}, own});
    for (int step = 1; step < shape.size; ++step)
      plan.send(shape.after(step), {Area::kInput, blocks[shape.after(step)]});
  }
  return withWindow(std::move(plan), shape);
}

Plan directAllToAll(const Shape& shape) {
  const Blocks blocks = shape.blocks(), incoming = shape.incomingBlocks();
  Plan plan;
  plan.copies.push_back({{Area::kInput, blocks[shape.self]}, {Area::kOutput, incoming[shape.self]}});
  for (int step = 1; step < shape.size; ++step) {
    const int peer = shape.after(step);
    plan.send(peer, {Area::kInput, blocks[peer]});
    plan.receive(peer, {Area::kOutput, incoming[peer]});
  }
  return withWindow(std::move(plan), shape);
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
    return plan;
  }
  for (int step = 1; step < shape.size; ++step)
    plan.reduce(shape.after(step), Action::kCombine, {Area::kInput, shape.all()}, {Area::kOutput, shape.all()});
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

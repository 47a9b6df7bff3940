#pragma once
// Machines of a summation service in one thread, with a network that delivers frames between any two of them in order,
// and otherwise in any order.

#include <gtest/gtest.h>

#include <deque>
#include <map>
#include <memory>

#include "tests/support/seeds.h"
#include "treadle/core/summation/adder.h"
#include "treadle/core/summation/requester.h"

namespace treadle::test {

class SimulatedMachine {
 public:
  SimulatedMachine(const summation::Declaration& declaration, summation::Machine self, size_t machines,
                   uint64_t grantBytes)
      : declaration_(declaration),
        self_(self),
        adder(declaration, self, grantBytes),
        requester(declaration, machines) {}

  // The data of a tensor, on a worker.
  void announce(size_t tensor, MutableBytes data) {
    const auto [begin, end] = declaration_.partsOf(tensor);
    for (size_t part = begin; part < end; ++part) {
      const summation::Part& where = declaration_.parts[part];
      const MutableBytes bytes = data.subspan(where.begin, where.bytes());
      where.machine == self_ ? adder.announceOwn(part, bytes) : requester.announce(part, bytes);
    }
  }
  bool isDone(size_t tensor) const {
    const auto [begin, end] = declaration_.partsOf(tensor);
    for (size_t part = begin; part < end; ++part)
      if (!(declaration_.parts[part].machine == self_ ? adder.isDone(part) : requester.isDone(part))) return false;
    return true;
  }

 private:
  const summation::Declaration& declaration_;
  const summation::Machine self_;

 public:
  summation::Adder adder;
  summation::Requester requester;
};

class SimulatedService {
 public:
  SimulatedService(summation::Declaration declaration, size_t servers, uint64_t grantBytes)
      : declaration_(std::move(declaration)) {
    const size_t machines = declaration_.workers + servers;
    for (summation::Machine self = 0; self < machines; ++self)
      machines_.push_back(std::make_unique<SimulatedMachine>(declaration_, self, machines, grantBytes));
  }

  SimulatedMachine& machine(summation::Machine one) { return *machines_[one]; }
  const summation::Declaration& declaration() const { return declaration_; }

  // Something that can happen does: a frame is written, or delivered. False: nothing can.
  bool step(Random& random) {
    std::vector<std::pair<summation::Machine, summation::Machine>> can;
    for (summation::Machine from = 0; from < machines_.size(); ++from)
      for (summation::Machine to = 0; to < machines_.size(); ++to)
        if (from != to && (canWrite(from, to) || !wires_[{from, to}].empty())) can.emplace_back(from, to);
    if (can.empty()) return false;
    const auto [from, to] = can[pick(random, can.size())];
    if (!canWrite(from, to) || (!wires_[{from, to}].empty() && pick(random, 2) == 0)) {
      deliver(from, to);
    } else {
      write(from, to);
    }
    return true;
  }

 private:
  struct OnTheWire {
    summation::Frame frame;
    std::vector<std::byte> piece;
  };

  bool isWorker(summation::Machine one) const { return one < declaration_.workers; }
  bool canWrite(summation::Machine from, summation::Machine to) const {
    return (isWorker(to) && machines_[from]->adder.hasNext(to)) ||
           (isWorker(from) && machines_[from]->requester.hasNext(to));
  }

  void write(summation::Machine from, summation::Machine to) {
    SimulatedMachine& sender = *machines_[from];
    std::optional<summation::Outgoing> next;
    const bool isOfAdder = isWorker(to) && (next = sender.adder.take(to)).has_value();
    if (!isOfAdder) next = sender.requester.take(to);
    wires_[{from, to}].push_back({next->frame, {next->piece.begin(), next->piece.end()}});
    isOfAdder ? sender.adder.written(to, *next) : sender.requester.written(*next);
  }

  void deliver(summation::Machine from, summation::Machine to) {
    OnTheWire one = std::move(wires_[{from, to}].front());
    wires_[{from, to}].pop_front();
    SimulatedMachine& receiver = *machines_[to];
    switch (one.frame.kind) {
      case summation::FrameKind::kAnnounce: return expectOk(receiver.adder.announced(from, one.frame));
      case summation::FrameKind::kGrant: return expectOk(receiver.requester.granted(from, one.frame));
      case summation::FrameKind::kAddend:
        put(receiver.adder.roomFor(from, one.frame), one.piece);
        return receiver.adder.arrived(from, one.frame);
      case summation::FrameKind::kSum:
        put(receiver.requester.roomFor(from, one.frame), one.piece);
        receiver.requester.arrived(one.frame);
    }
  }

  static void expectOk(const Status& status) { ASSERT_TRUE(status.ok()) << status.message(); }
  static void put(const Result<MutableBytes>& room, const std::vector<std::byte>& piece) {
    ASSERT_TRUE(room.ok()) << room.status().message();
    std::copy(piece.begin(), piece.end(), room->begin());
  }

  const summation::Declaration declaration_;
  std::vector<std::unique_ptr<SimulatedMachine>> machines_;
  std::map<std::pair<summation::Machine, summation::Machine>, std::deque<OnTheWire>> wires_;
};

}  // namespace treadle::test

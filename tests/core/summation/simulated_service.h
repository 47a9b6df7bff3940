#pragma once
// Machines of a summation service in one thread, with a network that delivers frames between any two of them in order,
// and otherwise in any order.

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "tests/support/seeds.h"
#include "treadle/core/base/error.h"
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

  // Something that can happen does: a frame begins to be written, is written, begins to be read, or has been read.
  // False: nothing can.
  bool step(Random& random) {
    std::vector<std::pair<summation::Machine, summation::Machine>> can;
    for (summation::Machine from = 0; from < machines_.size(); ++from)
      for (summation::Machine to = 0; to < machines_.size(); ++to)
        if (from != to && (canWrite(from, to) || !wires_[{from, to}].frames.empty())) can.emplace_back(from, to);
    if (can.empty()) return false;
    const auto [from, to] = can[pick(random, can.size())];
    const bool mayRead = !wires_[{from, to}].frames.empty();
    if (mayRead && (!canWrite(from, to) || pick(random, 2) == 0)) {
      read(from, to);
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
  struct Wire {
    std::optional<summation::Outgoing> writing;
    bool isOfAdder = false;
    std::vector<std::byte> atBegin;  // of the piece that is being written
    std::deque<OnTheWire> frames;
    std::optional<MutableBytes> room;  // of the first frame, which is being read
  };

  bool isWorker(summation::Machine one) const { return one < declaration_.workers; }
  bool canWrite(summation::Machine from, summation::Machine to) {
    return wires_[{from, to}].writing || (isWorker(to) && machines_[from]->adder.next(to).has_value()) ||
           machines_[from]->requester.next(to).has_value();
  }

  void write(summation::Machine from, summation::Machine to) {
    SimulatedMachine& sender = *machines_[from];
    Wire& wire = wires_[{from, to}];
    if (!wire.writing) {
      wire.isOfAdder = isWorker(to) && (wire.writing = sender.adder.take(to)).has_value();
      if (!wire.isOfAdder) wire.writing = sender.requester.take(to);
      wire.atBegin.assign(wire.writing->piece.begin(), wire.writing->piece.end());
      return;
    }
    const summation::Outgoing written = *std::exchange(wire.writing, {});
    wire.frames.push_back({written.frame, {written.piece.begin(), written.piece.end()}});
    EXPECT_EQ(wire.atBegin, wire.frames.back().piece) << "a piece changes while it is written";
    wire.isOfAdder ? sender.adder.written(to, written) : sender.requester.written(written);
  }

  void read(summation::Machine from, summation::Machine to) {
    Wire& wire = wires_[{from, to}];
    const summation::Frame frame = wire.frames.front().frame;
    SimulatedMachine& receiver = *machines_[to];
    if (frame.sizeBytes > 0 && !wire.room) {
      const bool isAddend = frame.kind == summation::FrameKind::kAddend;
      Result<MutableBytes> room =
          isAddend ? receiver.adder.roomFor(from, frame) : receiver.requester.roomFor(from, frame);
      throwIfError(room.status());
      wire.room = *room;
      return;
    }
    if (wire.room) std::ranges::copy(wire.frames.front().piece, wire.room->begin());
    wire.room.reset();
    wire.frames.pop_front();
    switch (frame.kind) {
      case summation::FrameKind::kAnnounce: return throwIfError(receiver.adder.announced(from, frame));
      case summation::FrameKind::kGrant: return throwIfError(receiver.requester.granted(from, frame));
      case summation::FrameKind::kAddend: return receiver.adder.arrived(from, frame);
      case summation::FrameKind::kSum: receiver.requester.arrived(frame); return;
      case summation::FrameKind::kLeave: FAIL() << "neither an adder nor a requester sends it";
    }
  }

  const summation::Declaration declaration_;
  std::vector<std::unique_ptr<SimulatedMachine>> machines_;
  std::map<std::pair<summation::Machine, summation::Machine>, Wire> wires_;
};

}  // namespace treadle::test

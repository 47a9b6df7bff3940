#pragma once
// Machines of a summation service in one thread, with a network that delivers frames between any two of them in order,
// and otherwise in any order. Servers may be killed.

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "tests/support/seeds.h"
#include "treadle/core/base/error.h"
#include "treadle/core/summation/machine_sums.h"

namespace treadle::test {

class SimulatedService {
 public:
  SimulatedService(summation::Declaration declaration, size_t servers, uint64_t grantBytes)
      : declaration_(std::move(declaration)),
        bandwidths_(summation::Bandwidths::even(declaration_.workers, servers, 1)) {
    const size_t machines = declaration_.workers + servers;
    for (summation::Machine self = 0; self < machines; ++self)
      machines_.push_back(std::make_unique<summation::MachineSums>(declaration_, self, machines, grantBytes));
  }

  summation::MachineSums& machine(summation::Machine one) { return *machines_[one]; }
  const summation::Declaration& declaration() const { return declaration_; }

  // All parts of the tensor.
  bool isDone(summation::Machine worker, size_t tensor) const {
    const auto [begin, end] = declaration_.partsOf(tensor);
    for (size_t part = begin; part < end; ++part)
      if (!machines_[worker]->isDone(part)) return false;
    return true;
  }

  // What it has written before may still arrive. The first worker hears of it at some time, and then the others do.
  void kill(summation::Machine server) {
    machines_[server].reset();
    news_[0].push_back({server});
  }
  bool isAlive(summation::Machine one) const { return machines_[one] != nullptr; }

  // Something that can happen does: a frame begins to be written, is written, begins to be read, or has been read; a
  // machine hears of a lost server. False: nothing can.
  bool step(Random& random) {
    std::vector<std::pair<summation::Machine, summation::Machine>> can;
    for (summation::Machine from = 0; from < machines_.size(); ++from)
      for (summation::Machine to = 0; to < machines_.size(); ++to)
        if (from == to ? !news_[to].empty() : canWrite(from, to) || canRead(from, to)) can.emplace_back(from, to);
    if (can.empty()) return false;
    const auto [from, to] = can[pick(random, can.size())];
    if (from == to) {
      hear(to);
    } else if (canRead(from, to) && (!canWrite(from, to) || pick(random, 2) == 0)) {
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
    std::vector<std::byte> atBegin;  // of the piece that is being written
    std::deque<OnTheWire> frames;
    std::optional<MutableBytes> room;  // of the first frame, which is being read
  };
  struct News {
    summation::Machine lost = 0;
    std::vector<summation::Machine> machines = {};  // of its parts, from the first worker
  };

  bool canWrite(summation::Machine from, summation::Machine to) {
    return isAlive(from) && !machines_[from]->isLost(to) &&
           (wires_[{from, to}].writing || machines_[from]->hasBytes(to));
  }
  bool canRead(summation::Machine from, summation::Machine to) {
    return isAlive(to) && !machines_[to]->isLost(from) && !wires_[{from, to}].frames.empty();
  }

  void write(summation::Machine from, summation::Machine to) {
    Wire& wire = wires_[{from, to}];
    if (!wire.writing) {
      wire.writing = machines_[from]->take(to);
      wire.atBegin.assign(wire.writing->piece.begin(), wire.writing->piece.end());
      return;
    }
    const summation::Outgoing written = *std::exchange(wire.writing, {});
    wire.frames.push_back({written.frame, {written.piece.begin(), written.piece.end()}});
    EXPECT_EQ(wire.atBegin, wire.frames.back().piece) << "a piece changes while it is written";
    machines_[from]->written(to, written);
  }

  void read(summation::Machine from, summation::Machine to) {
    Wire& wire = wires_[{from, to}];
    const summation::Frame frame = wire.frames.front().frame;
    if (frame.sizeBytes > 0 && !wire.room) {
      wire.room = valueOrThrow(machines_[to]->roomFor(from, frame));
      std::ranges::fill(*wire.room, std::byte{0xee});  // half of the piece may be there
      return;
    }
    if (wire.room) std::ranges::copy(wire.frames.front().piece, wire.room->begin());
    wire.room.reset();
    wire.frames.pop_front();
    throwIfError(machines_[to]->arrived(from, frame));
  }

  void hear(summation::Machine machine) {
    News news = news_[machine].front();
    news_[machine].pop_front();
    if (!isAlive(machine)) return;
    summation::MachineSums& sums = *machines_[machine];
    if (machine == 0) {
      news.machines = sums.placesWithout(news.lost, bandwidths_);
      for (summation::Machine one = 1; one < machines_.size(); ++one) news_[one].push_back(news);
    }
    wires_.erase({machine, news.lost});
    wires_.erase({news.lost, machine});
    throwIfError(sums.move(news.lost, news.machines));
  }

  const summation::Declaration declaration_;
  const summation::Bandwidths bandwidths_;
  std::vector<std::unique_ptr<summation::MachineSums>> machines_;  // null: it was killed
  std::map<std::pair<summation::Machine, summation::Machine>, Wire> wires_;
  std::map<summation::Machine, std::deque<News>> news_;
};

}  // namespace treadle::test

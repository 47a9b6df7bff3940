#pragma once
// A worker's part in the sums of a summation service: it announces its data to the machines that sum it, sends what
// they grant, and takes the sums, which replace the data piece by piece. Its own machine's parts are an Adder's. Pure
// logic over memory, without sockets; one thread at a time.
//
// Of several parts those of the first tensor go first, whenever they were announced.

#include <optional>
#include <set>

#include "treadle/core/base/status.h"
#include "treadle/core/summation/declaration.h"
#include "treadle/core/summation/outgoing.h"

namespace treadle::summation {

class Requester {
 public:
  // `declaration` must outlive it.
  Requester(const Declaration& declaration, size_t machines);

  // The data of a part that another machine sums is there. Until `isDone` nobody else touches it.
  void announce(size_t part, MutableBytes data);
  bool isDone(size_t part) const { return !states_[part].isUnderWay; }

  // From another machine. DataLoss: what no machine sends.
  Status granted(Machine machine, const Frame& grant);
  // Where the bytes of a piece of a sum go; then that they are there. Yields the part if that was its last piece.
  Result<MutableBytes> roomFor(Machine machine, const Frame& sum);
  std::optional<size_t> arrived(const Frame& sum);

  // The next frame for a machine; its piece stays where it is until `written`.
  std::optional<Outgoing> take(Machine machine);
  // The part of that frame; 0 of an announcement, which goes first.
  std::optional<size_t> next(Machine machine) const;
  void written(const Outgoing& frame);

 private:
  // Of a part that another machine sums.
  struct State {
    uint64_t round = 0;  // that is under way, or the next one
    MutableBytes data = {};
    bool isUnderWay = false, isAnnounced = false, isGranted = false;
    uint64_t taken = 0, written = 0, arrived = 0;  // pieces
  };

  const Declaration& declaration_;
  std::vector<State> states_;                    // by part
  std::vector<std::set<size_t>> announcements_;  // by machine: parts of which it is to hear
  std::vector<std::set<size_t>> grants_;         // by machine: parts with pieces to take
};

}  // namespace treadle::summation

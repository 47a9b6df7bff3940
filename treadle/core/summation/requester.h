#pragma once
// A worker's part in the sums of a summation service: it announces its data to the machines that sum it, sends what
// they grant, and takes the sums, which replace the data piece by piece. The parts that its own machine sums are
// exchanged with the Adder there, by functions. Pure logic over memory, without sockets; one thread at a time.
//
// Of several parts those of the first tensor go first, whenever they were announced.
//
// A server of a synchronous service may be lost. So a worker keeps what a server's sum replaces until all workers have
// that sum: then a part that moves to another machine can be summed again from the data of all, in the same order. It
// begins there with a report of the rounds that the worker has (kHave). The machine answers which one is next
// (kRelease): the one that the worker makes, or the one before, where others lack its sum. Then the worker announces
// its copy, and drops the sum.
//
// A server of an asynchronous service may be lost too. So a worker keeps the last answer of each of its parts, with its
// version: a new one comes beside it, and replaces the data when all of it is there. A part that moves goes on from the
// last answer that any worker has. It begins with a report of the version. The worker that is released the
// round before announces its copy, and discards the answer.
//
// A part that a server sums, and whose sum would not be the same on another machine (Packing::hasKeptSums), is done
// only when all workers have the sum: until then each can restore its data, and take another sum in place
// of this one.
//
// After std::bad_alloc, which any function may throw, it is of no use any more.

#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "treadle/core/base/status.h"
#include "treadle/core/summation/declaration.h"
#include "treadle/core/summation/outgoing.h"
#include "treadle/core/summation/part_memory.h"

namespace treadle::summation {

class Requester {
 public:
  // `declaration` must outlive it.
  Requester(const Declaration& declaration, Machine self, size_t machines);

  // The data of a part is there. Until `isDone` nobody else touches it.
  void announce(size_t part, MutableBytes data);
  bool isDone(size_t part) const { return !states_[part].isUnderWay; }
  bool isHere(size_t part) const { return isDone(part) || states_[part].awaitsAll; }
  // Whether data of some part could go, or its sum come.
  bool dataMayMove() const { return inMotion_ > 0; }
  // The parts for which isDone has become true since the last call.
  std::vector<size_t> takeDone() { return std::exchange(done_, {}); }

  // The part has another machine in the declaration now than `from`, which was a server and is lost: no frame of it may
  // be on the way here, and nothing may read what it was sent.
  void moved(size_t part, Machine from);

  // ---- with other machines. DataLoss: what no machine sends
  Status granted(Machine machine, const Frame& grant);
  Status released(Machine machine, const Frame& release);
  // Where the bytes of a sum's piece, or of a version, go; then that they are there.
  Result<MutableBytes> roomFor(Machine machine, const Frame& sum);
  Status arrived(const Frame& sum);

  // The next frame for a machine; its piece stays where it is until `written`, which
  // ignores frames of others.
  std::optional<Outgoing> take(Machine machine);
  // The part of that frame; 0 of one without a piece, which goes first.
  std::optional<size_t> next(Machine machine) const;
  void written(const Outgoing& frame);

  // ---- with the Adder of this machine: what it is to hear, since the last call
  struct Own {
    size_t part = 0;
    uint64_t round = 0;
    MutableBytes data = {};            // that is announced; none: the worker has the sums of the rounds before
    const Version* version = nullptr;  // with no data: the version of the last sum that it has
  };
  std::vector<Own> takeOwn() { return std::exchange(own_, {}); }
  // What it answers: that this round is next, or that the sum is in the data. DataLoss: the round cannot be next.
  Status releasedOwn(size_t part, uint64_t round);
  void summedOwn(size_t part) { ended(part); }

 private:
  struct State {
    uint64_t round = 0;  // that is under way, or the next one: this worker has the sums of those before
    MutableBytes data = {};
    bool isUnderWay = false;
    bool awaitsAll = false;    // the sum of the round before is there, and not known to be on all workers
    bool isMoving = false;     // its machine has not said yet which round is next
    bool isAgain = false;      // the round before is summed again
    MutableBytes copy = {};    // of the round before; or of what the sum of this one has replaced
    MutableBytes spare = {};   // where a sum goes that this worker has, or the answer that comes
    Version version = {};      // of the answer in the copy; none before the first one
    Version nextVersion = {};  // of the answer that comes
    struct Exchange {          // with the machine
      bool isAnnounced = false, isGranted = false, isInMotion = false, hasVersion = false;
      uint64_t taken = 0, written = 0, arrived = 0;  // pieces
      uint64_t copied = 0;                           // pieces that the sum has replaced, or is about to
    };
    Exchange exchange = {};

    uint64_t offeredRound() const { return isAgain ? round - 1 : round; }
    MutableBytes offered() const { return isAgain ? copy : data; }
    bool hasCopyOfLast() const { return !copy.empty() && exchange.copied == 0; }
  };

  // Its sums may be needed again.
  bool isKept(size_t part) const { return declaration_.parts[part].machine >= declaration_.workers; }
  bool isAnswered(size_t part) const { return isKept(part) && declaration_.mode.isAsynchronous; }
  bool mayBeMadeAnew(size_t part) const {
    return isKept(part) && declaration_.tensors[declaration_.parts[part].tensor].packing.hasKeptSums();
  }
  void offerIfReady(size_t part);
  bool isDue(const State& state, uint64_t releasedRound) const;
  void release(size_t part, uint64_t round);
  void restore(size_t part);
  void ended(size_t part);
  void setInMotion(State& state, bool isInMotion);
  void endExchange(State& state);
  Result<MutableBytes> roomForVersion(size_t part, const Frame& frame);
  void takeAnswer(size_t part);
  void finish(size_t part);
  void undo(size_t part);
  void giveBack(MutableBytes* memory);

  const Declaration& declaration_;
  const Machine self_;
  std::vector<State> states_;                    // by part
  std::vector<std::set<size_t>> haves_;          // by machine: parts of which it is to hear
  std::vector<std::set<size_t>> announcements_;  // likewise
  std::vector<std::set<size_t>> grants_;         // by machine: parts with pieces to take
  size_t inMotion_ = 0;                          // parts whose data may go, or sum come
  std::vector<Own> own_;
  std::vector<size_t> done_;
  PartMemory memory_;
};

}  // namespace treadle::summation

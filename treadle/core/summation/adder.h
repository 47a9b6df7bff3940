#pragma once
// A machine's part in the sums of a summation service: it takes what workers announce and send, adds, and yields what
// goes to each worker. Pure logic over memory, without sockets; one thread at a time.
//
// SynchronousAdder adds what all workers have of the same round. AsynchronousAdder keeps running sums, and answers each
// worker by itself. To workers both look alike: a part is announced, granted, sent piece by piece, and its sum comes
// back piece by piece.
//
// After std::bad_alloc, which any function may throw that begins or ends a part, it is of no use any more.

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "treadle/core/base/status.h"
#include "treadle/core/summation/declaration.h"
#include "treadle/core/summation/frame.h"
#include "treadle/core/summation/outgoing.h"

namespace treadle::summation {

class Adder {
 public:
  // In place of a round, of a part that moves to here and lacks the report of some worker.
  static constexpr uint64_t kMoves = UINT64_MAX;
  // Of each worker, granted at a time; a larger part alone.
  static constexpr uint64_t kGrantBytes = uint64_t{16} << 20;

  // As the declaration says, which must outlive it. Adds the parts of `machine`.
  static std::unique_ptr<Adder> make(const Declaration& declaration, Machine machine, uint64_t grantBytes);
  virtual ~Adder() = default;
  Adder(const Adder&) = delete;
  Adder& operator=(const Adder&) = delete;

  // From another machine. DataLoss: what no worker sends.
  virtual Status announced(size_t worker, const Frame& announce) = 0;
  // Which sums it has: kHave, or kVersion when all of its piece is there.
  virtual Status had(size_t worker, const Frame& have) = 0;
  // Where the bytes of a piece go. When they are there, `arrived` follows for an addend, and `had` for a version.
  virtual Result<MutableBytes> roomFor(size_t worker, const Frame& frame) = 0;
  virtual void arrived(size_t worker, const Frame& addend) = 0;
  // It sends no more data, but of what is summed again.
  virtual void left(size_t worker) = 0;

  // The part has this machine in the declaration from now on, as another one is lost. DataLoss: a worker has reported
  // what it cannot have.
  virtual Status adopt(size_t part) = 0;

  // ---- with the worker on this machine. It has its data of the part, in which the sum replaces it piece by piece;
  // nobody else writes to it until the part is in `takeDone`: those that have ended since the last call.
  virtual void announceOwn(size_t part, MutableBytes data) = 0;
  std::vector<size_t> takeDone() { return std::exchange(done_, {}); }
  // It has the sums of an adopted part of all rounds before this one. `version`: of the last of them, in running sums.
  // Then, of adopted parts, which round is next. DataLoss: as `adopt`.
  virtual Status hadOwn(size_t part, uint64_t round, const Version& version) = 0;
  std::vector<std::pair<size_t, uint64_t>> takeReleasedOwn() { return std::exchange(releasedOwn_, {}); }

  // Whether data of some part could come, or its sum go.
  virtual bool dataMayMove() const = 0;
  // How many sums of parts have been made and sent to their workers.
  uint64_t sums() const { return sumsMade_; }

  // Parts that wait for some workers, to begin a round or to go on after a loss, each with its round; and those
  // workers.
  virtual std::vector<std::pair<size_t, uint64_t>> awaited() const = 0;
  virtual std::vector<size_t> missing(size_t part) const = 0;
  // A part that waits for what the first worker has not given, and never will, as it has left.
  virtual std::optional<size_t> waitsInVain() const = 0;

  // The next frame for a worker on another machine; its piece stays where it is until `written`,
  // which ignores frames of others.
  virtual std::optional<Outgoing> take(size_t worker) = 0;
  // The part of that frame; 0 of one without a piece, which goes first.
  virtual std::optional<size_t> next(size_t worker) const = 0;
  virtual void written(size_t worker, const Outgoing& frame) = 0;

 protected:
  Adder(const Declaration& declaration, Machine machine, uint64_t grantBytes)
      : declaration_(declaration), machine_(machine), grantBytes_(grantBytes) {}

  bool isOwn(size_t worker) const { return worker == machine_; }
  bool isServer(Machine machine) const { return machine >= declaration_.workers; }
  bool isElsewhere(size_t machine) const { return machine < declaration_.workers && !isOwn(machine); }

  const Declaration& declaration_;
  const Machine machine_;
  const uint64_t grantBytes_;
  std::vector<size_t> done_;
  std::vector<std::pair<size_t, uint64_t>> releasedOwn_;
  uint64_t sumsMade_ = 0;
};

}  // namespace treadle::summation

#pragma once
// A machine's part in the sums of a summation service: it takes what workers announce and send, adds, and yields what
// goes to each worker. Pure logic over memory, without sockets; one thread at a time.
//
// A part is granted when all workers have announced its next round and the limit on granted bytes allows it. From then
// on all workers have its data and it has all the memory that it needs, so it ends whatever the order in which pieces
// come. A piece is summed when it has come from all workers, in the order of their ranks, and goes to all of them. Of
// several parts those of the first tensor go first.
//
// Workers keep what a server's sums replace, until it reports that all of them have the sum (Requester has the why). A
// part that a lost server summed begins anew on another machine: when each worker has said which rounds it has, the
// machine says which one is next.
//
// After std::bad_alloc, which any function may throw that begins or ends a part, it is of no use any more.
//
// Budget of a piece: one search among the parts, one in the order of a worker; no allocation but that of an entry
// there.

#include <optional>
#include <set>
#include <utility>

#include "treadle/core/base/status.h"
#include "treadle/core/summation/declaration.h"
#include "treadle/core/summation/frame.h"
#include "treadle/core/summation/outgoing.h"
#include "treadle/core/summation/part_memory.h"

namespace treadle::summation {

class Adder {
 public:
  // Of each worker, granted at a time; a larger part alone.
  static constexpr uint64_t kGrantBytes = uint64_t{16} << 20;

  // `declaration` must outlive it. Adds the parts of `machine`.
  Adder(const Declaration& declaration, Machine machine, uint64_t grantBytes = kGrantBytes);

  // From another machine. DataLoss: what no worker sends.
  Status announced(size_t worker, const Frame& announce);
  Status had(size_t worker, const Frame& have);
  // Where the bytes of its piece go; then that they are there.
  Result<MutableBytes> roomFor(size_t worker, const Frame& addend);
  void arrived(size_t worker, const Frame& addend);

  // The part has this machine in the declaration from now on, as another one is lost.
  void adopt(size_t part);

  // ---- with the worker on this machine. It has its data of the part, in which the sum replaces it piece by piece;
  // nobody else writes to it until the part is in `takeDone`: those that have ended since the last call.
  void announceOwn(size_t part, MutableBytes data);
  std::vector<size_t> takeDone() { return std::exchange(done_, {}); }
  // It has the sums of the rounds of an adopted part before this one; then, of such parts, which round is next.
  void hadOwn(size_t part, uint64_t round);
  std::vector<std::pair<size_t, uint64_t>> takeReleasedOwn() { return std::exchange(releasedOwn_, {}); }

  // The number of sums of parts that have been sent to all workers.
  uint64_t sums() const { return sumsMade_; }

  // Parts that some workers have announced and others have not, each with its round; and those that have not.
  std::vector<std::pair<size_t, uint64_t>> awaited() const;
  std::vector<size_t> missing(size_t part) const;

  // The next frame for a worker on another machine; its piece stays where it is until `written`.
  std::optional<Outgoing> take(size_t worker);
  // The part of that frame; 0 of one without a piece, which goes first.
  std::optional<size_t> next(size_t worker) const;
  void written(size_t worker, const Outgoing& frame);

 private:
  // Of a part of this machine.
  struct State {
    bool isMoving = false;                     // to here, and not all workers have said what they have
    std::vector<std::optional<uint64_t>> has;  // by worker: the rounds before this one, if it has said so
    uint64_t released = 0;                     // the round that workers were told is next
    uint64_t nextRound = 0;                    // that is being announced
    std::vector<bool> announced;               // by worker
    size_t announcements = 0;
    MutableBytes own;  // data of the worker on this machine, once it has announced
    bool ownIsUnderWay = false;
    // While it is granted, in the round before:
    bool isOpen = false;
    std::vector<MutableBytes> addends;              // by worker
    std::vector<uint64_t> arrived, taken, written;  // pieces, by worker
    uint64_t summed = 0;                            // pieces
  };

  bool isOwn(size_t worker) const { return worker == machine_; }
  bool isElsewhere(size_t machine) const { return machine < declaration_.workers && !isOwn(machine); }
  bool isServer(Machine machine) const { return machine >= declaration_.workers; }
  bool mayHave(size_t worker, size_t part, uint64_t round) const;
  void releaseIfAllHave(size_t part);
  void announce(size_t worker, size_t part);
  void grantMore();
  void open(size_t part);
  void advance(size_t part);
  void addPiece(size_t part, uint64_t piece);
  void closeIfWritten(size_t part);
  // Where the sum is: in the data of the worker on this machine, or of the first one.
  MutableBytes sumOf(const State& state) const { return state.addends[machine_ < declaration_.workers ? machine_ : 0]; }

  const Declaration& declaration_;
  const Machine machine_;
  const uint64_t grantBytes_;
  std::vector<State> states_;  // by part; those of other machines are not used
  std::set<size_t> ready_;     // announced by all workers
  uint64_t openBytes_ = 0, sumsMade_ = 0;
  std::vector<std::set<size_t>> releases_;  // by worker: parts of which it is to hear
  std::vector<std::set<size_t>> grants_;    // likewise
  std::vector<std::set<size_t>> sums_;      // by worker: parts with pieces to take
  std::vector<size_t> done_;
  std::vector<std::pair<size_t, uint64_t>> releasedOwn_;
  PartMemory memory_;
  std::vector<const std::byte*> addends_;  // of the piece that is being added
};

}  // namespace treadle::summation

#pragma once
// Sums of rounds (Adder): the n-th data of a part of each worker is added to the n-th of all others.
//
// A part is granted when all workers have announced its next round and the limit on granted bytes allows it. From then
// on all workers have its data and it has all the memory that it needs, so it ends whatever the order in which pieces
// come. A piece is summed when it has come from all workers, in the order of their ranks, and goes to all of them. Of
// several parts those of the first tensor go first. A quarter of the limit is kept for parts that go
// before all that are granted: otherwise a small one would wait until a large one has ended.
//
// Workers keep what a server's sums replace, until it reports that all of them have the sum (Requester has the why). A
// part that a lost server summed begins anew on another machine: when each worker has said which rounds it has, the
// machine says which one is next.
//
// What is lost where sums are packed (Packing::hasKeptSums) is kept here and added to the next sum of the part (Tang et
// al., "DoubleSqueeze", ICML 2019).
//
// Budget of a piece: one search among the parts, one in the order of a worker; no allocation but that of an entry
// there.

#include <set>
#include <span>

#include "treadle/core/summation/adder.h"
#include "treadle/core/summation/part_memory.h"

namespace treadle::summation {

class SynchronousAdder final : public Adder {
 public:
  SynchronousAdder(const Declaration& declaration, Machine machine, uint64_t grantBytes = kGrantBytes);

  Status announced(size_t worker, const Frame& announce) override;
  Status had(size_t worker, const Frame& have) override;
  Result<MutableBytes> roomFor(size_t worker, const Frame& addend) override;
  void arrived(size_t worker, const Frame& addend) override;
  void left(size_t /*worker*/) override {}
  Status adopt(size_t part) override;
  void announceOwn(size_t part, MutableBytes data) override;
  Status hadOwn(size_t part, uint64_t round, const Version& version) override;
  bool dataMayMove() const override { return !open_.empty(); }
  std::vector<std::pair<size_t, uint64_t>> awaited() const override;
  std::vector<size_t> missing(size_t part) const override;
  std::optional<size_t> waitsInVain() const override { return {}; }
  std::optional<Outgoing> take(size_t worker) override;
  std::optional<size_t> next(size_t worker) const override;
  void written(size_t worker, const Outgoing& frame) override;

 private:
  // Of a part of this machine. Lists by worker are empty where it sums no such part.
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
    // What earlier sums have lost, of a part with Packing::hasKeptSums; it is lost with this machine.
    std::vector<float> kept;
  };

  State& prepared(size_t part);
  bool mayHave(size_t worker, size_t part, uint64_t round) const;
  void releaseIfAllHave(size_t part);
  void announce(size_t worker, size_t part);
  void grantMore();
  bool fits(size_t part) const;
  void open(size_t part);
  void advance(size_t part);
  const Packing& packingOf(size_t part) const { return declaration_.tensors[declaration_.parts[part].tensor].packing; }
  void addPiece(size_t part, uint64_t piece);
  void addChunks(size_t part, uint64_t piece, MutableBytes result);
  void closeIfWritten(size_t part);
  // Where the sum is: in the data of the worker on this machine, or of the first one.
  MutableBytes sumOf(const State& state) const { return state.addends[machine_ < declaration_.workers ? machine_ : 0]; }

  std::vector<State> states_;  // by part
  std::set<size_t> ready_;     // announced by all workers
  std::set<size_t> open_;      // granted
  uint64_t openBytes_ = 0;
  std::vector<std::set<size_t>> releases_;  // by worker: parts of which it is to hear
  std::vector<std::set<size_t>> grants_;    // likewise
  std::vector<std::set<size_t>> sums_;      // by worker: parts with pieces to take
  PartMemory memory_;
  std::vector<const std::byte*> addends_;  // of the piece that is being added
};

}  // namespace treadle::summation

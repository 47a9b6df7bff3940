#pragma once
// Running sums (Adder): for each part the machine keeps the sum of all that has come. What a worker gives is added when
// all of the part is there, whatever the others do, and the latest sum is its answer. So the sum of a part is at any
// time that of the first k parts that have come, for all its elements alike: no worker sees a half of what another one
// has given. This is Asynchronous Parallel as in Jiang et al. (OSDI 2020, section 4.2), where workers give the changes
// of their parameters.
//
// An answer waits until the first worker has given the part once, as that is the value that all begin with. Where
// staleness is bounded it also waits as long as another worker, which has not left, has given the part more than so
// many times less (Stale Synchronous Parallel: Ho et al., NIPS 2013).
//
// A server may be lost, and with it its sums. So a server sends with each answer its version, and workers keep their
// last answers. A part that moves to another machine goes on from the last answer that any worker has: each worker
// reports the version of its own, and the one with the latest gives it, as the part's first data. Then each worker
// without an answer sends its data again. If the answer that was given contains that data, it is not added again.
//
// A part that comes, and an answer that goes, take memory, for each worker up to a limit: a slow worker takes nothing
// from the others. Both end whatever the other workers do. A part whose answer waits takes none, or two workers that
// give two parts in different orders could wait for each other.
//
// Budget of a part: one sum and one copy of it; no allocation but in PartMemory, of entries in sets, and of a server's
// first version. Memory: the sums, those limits, and of parts that may move to here a version of each
// worker.

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>

#include "treadle/core/summation/adder.h"
#include "treadle/core/summation/part_memory.h"

namespace treadle::summation {

class AsynchronousAdder final : public Adder {
 public:
  AsynchronousAdder(const Declaration& declaration, Machine machine, uint64_t grantBytes = kGrantBytes);

  Status announced(size_t worker, const Frame& announce) override;
  Status had(size_t worker, const Frame& have) override;
  Result<MutableBytes> roomFor(size_t worker, const Frame& frame) override;
  void arrived(size_t worker, const Frame& addend) override;
  void left(size_t worker) override;
  Status adopt(size_t part) override;
  void announceOwn(size_t part, MutableBytes data) override;
  Status hadOwn(size_t part, uint64_t round, const Version& version) override;
  bool dataMayMove() const override {
    return std::any_of(openBytes_.begin(), openBytes_.end(), [](uint64_t bytes) { return bytes > 0; });
  }
  std::vector<std::pair<size_t, uint64_t>> awaited() const override;
  std::vector<size_t> missing(size_t part) const override;
  std::optional<size_t> waitsInVain() const override;
  std::optional<Outgoing> take(size_t worker) override;
  std::optional<size_t> next(size_t worker) const override;
  void written(size_t worker, const Outgoing& frame) override;

 private:
  enum class Stage : uint8_t { kNone, kAnnounced, kGranted, kAdded, kAnswerDue, kAnswered };

  // Of a worker and a part of this machine.
  struct Exchange {
    uint64_t given = 0;    // how many times all of it has come
    bool isInSum = false;  // the sum contains its next data already, from a machine that is lost
    Stage stage = Stage::kNone;
    MutableBytes data = {};  // while it comes; its answer, while that goes; of the worker here both
    Version version = {};    // of that answer, on a server
    bool versionIsDue = false;
    uint64_t arrived = 0, taken = 0, written = 0;  // pieces

    uint64_t added() const { return given + (isInSum ? 1 : 0); }
  };
  // Of a part of this machine.
  struct State {
    MutableBytes sum = {};            // none: nobody has given anything
    std::vector<Exchange> exchanges;  // by worker
  };

  // Of a part that moves to here.
  struct Move {
    struct Report {
      bool isHere = false;
      uint64_t round = 0;  // the worker has had so many answers
      Version version = {};
    };
    bool isAdopted = false;
    std::vector<Report> reports;       // by worker
    std::optional<size_t> giver = {};  // the worker that gives its last answer, once all have reported
  };

  Result<MutableBytes> roomForReport(size_t worker, const Frame& frame);
  Move& moveOf(size_t part);
  Status goOnIfAllReported(size_t part);
  Status checkReports(size_t part, const Move::Report& last) const;
  std::vector<size_t> missing(const Move& move) const;
  void goOn(size_t part, size_t giver);
  bool isGivenBy(size_t part, size_t worker) const;
  void release(size_t worker, size_t part);
  void proceed(size_t worker);
  bool takeMemory(size_t worker, size_t part);
  void giveMemoryBack(size_t worker, size_t part);
  void add(size_t worker, size_t part);
  void answerAll(size_t part);
  bool mustWait(const State& state, uint64_t given) const;
  bool waitsFor(const State& state, uint64_t given, size_t worker) const;
  std::vector<size_t> notBegunFor(const State& state, uint64_t given) const;
  void answer(size_t worker, size_t part);
  void noteVersion(size_t worker, size_t part);
  MutableBytes dataOf(size_t part, MutableBytes memory) const { return memory.first(declaration_.parts[part].bytes()); }

  std::vector<State> states_;                      // by part; those of other machines are not used
  std::vector<bool> hasLeft_;                      // by worker
  std::vector<uint64_t> openBytes_;                // likewise: of the memory that it takes
  std::vector<std::set<size_t>> due_, announced_;  // likewise: parts that lack memory, to be answered and to be granted
  std::vector<std::set<size_t>> releases_, grants_, sums_;  // likewise: parts to release, to grant, with pieces to send
  std::map<size_t, Move> moves_;                            // by part
  std::set<size_t> waiting_;                                // parts with an answer that waits
  PartMemory memory_;
};

}  // namespace treadle::summation

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
// A part that comes, and an answer that goes, take memory, for each worker up to a limit: a slow worker takes nothing
// from the others. Both end whatever the other workers do. A part whose answer waits takes none, or two workers that
// give two parts in different orders could wait for each other.
//
// Budget of a part: one sum and one copy of it. Memory: the sums, and those limits.

#include <algorithm>
#include <cstdint>
#include <set>

#include "treadle/core/summation/adder.h"
#include "treadle/core/summation/part_memory.h"

namespace treadle::summation {

class AsynchronousAdder final : public Adder {
 public:
  AsynchronousAdder(const Declaration& declaration, Machine machine, uint64_t grantBytes = kGrantBytes);

  Status announced(size_t worker, const Frame& announce) override;
  Status had(size_t worker, const Frame& have) override;
  Result<MutableBytes> roomFor(size_t worker, const Frame& addend) override;
  void arrived(size_t worker, const Frame& addend) override;
  void left(size_t worker) override;
  void adopt(size_t part) override;
  void announceOwn(size_t part, MutableBytes data) override;
  void hadOwn(size_t part, uint64_t round) override;
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
    uint64_t given = 0;  // how many times it has been added
    Stage stage = Stage::kNone;
    MutableBytes data = {};  // while it comes; its answer, while that goes; of the worker here both
    uint64_t arrived = 0, taken = 0, written = 0;  // pieces
  };
  // Of a part of this machine.
  struct State {
    MutableBytes sum = {};            // none: nobody has given anything
    std::vector<Exchange> exchanges;  // by worker
  };

  void proceed(size_t worker);
  bool takeMemory(size_t worker, size_t part);
  void giveMemoryBack(size_t worker, size_t part);
  void add(size_t worker, size_t part);
  void answerAll(size_t part);
  bool mustWait(const State& state, uint64_t given) const;
  bool waitsFor(const State& state, uint64_t given, size_t worker) const;
  std::vector<size_t> notBegunFor(const State& state, uint64_t given) const;
  void answer(size_t worker, size_t part);
  MutableBytes dataOf(size_t part, MutableBytes memory) const { return memory.first(declaration_.parts[part].bytes()); }

  std::vector<State> states_;                      // by part; those of other machines are not used
  std::vector<bool> hasLeft_;                      // by worker
  std::vector<uint64_t> openBytes_;                // likewise: of the memory that it takes
  std::vector<std::set<size_t>> due_, announced_;  // likewise: parts that lack memory, to be answered and to be granted
  std::vector<std::set<size_t>> grants_, sums_;    // likewise: parts of which it is to hear, with pieces to take
  std::set<size_t> waiting_;                       // parts with an answer that waits
  PartMemory memory_;
};

}  // namespace treadle::summation

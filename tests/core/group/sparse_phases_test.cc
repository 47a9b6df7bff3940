// A member of a sparse all-reduce is killed, or stops, in each of its phases. As in the fault matrix: the others end
// with the sums if they have all that they need, and else with an error that names the member.

#include <set>

#include "tests/core/group/sparse_rows.h"
#include "tests/core/group/tapped_job.h"

namespace treadle::sparse_phases_test {
namespace {

using group::Message;
using group::MessageKind;
using std::chrono::milliseconds;
using test::contains;
using test::failureOf;
using test::TappedJob;

constexpr int kMembers = 3;
constexpr uint64_t kWidth = 8;

enum class Phase {
  kAbsent,   // the victim has not called it
  kBegun,    // it has, and gets nothing
  kStarted,  // it gets the starts, and no chunk of rows
  kMiddle,   // it gets some chunks
  kNoSums,   // it gets the rows of all, and no sums
  kDone,     // it has ended well, and the member after it has not got its sums; large: of one window
};

struct Case {
  Phase phase;
  bool isLarge = false;  // rows and sums go in many chunks, more than a window; otherwise with starts and results
};

std::string nameOf(const ::testing::TestParamInfo<std::tuple<Case, int>>& info) {
  constexpr std::string_view kNames[] = {"Absent", "Begun", "Started", "Middle", "NoSums", "Done"};
  const auto& [one, victim] = info.param;
  return std::string(kNames[static_cast<size_t>(one.phase)]) + (one.isLarge ? "Large" : "Small") + "Rank" +
         std::to_string(victim);
}

class SparsePhase : public ::testing::TestWithParam<std::tuple<Case, int>> {
 protected:
  SparsePhase() {
    for (int rank = 0; rank < kMembers; ++rank)
      for (uint64_t row = 0; row < rows_; ++row)
        member(rank).add(4 * row + static_cast<uint64_t>(rank), kWidth, static_cast<float>(rank + 1));
  }

  static Phase phase() { return std::get<Case>(GetParam()).phase; }
  static bool isLarge() { return std::get<Case>(GetParam()).isLarge; }
  static int victim() { return std::get<int>(GetParam()); }
  static int next() { return (victim() + 1) % kMembers; }
  GroupOptions options() const {
    return {.smallBytes = isLarge() ? 0 : GroupOptions{}.smallBytes,
            .chunkBytes = !isLarge()                ? GroupOptions{}.chunkBytes
                          : phase() == Phase::kDone ? 4096
                                                    : 64};
  }
  test::SparseMember<float>& member(int rank) { return members_[static_cast<size_t>(rank)]; }

  // Starts it on this member, unless it is absent.
  void start(TappedJob& job, int rank, Duration timeout = kNoTimeout) {
    if (rank == victim() && phase() == Phase::kAbsent) return;
    futureOf(rank) = member(rank).start(job.group(rank).withTimeout(timeout), shape_);
  }
  Future<void>& futureOf(int rank) { return futures_[static_cast<size_t>(rank)]; }

  // Whether the member has all that it needs. Large sums need acknowledgements of the victim too.
  static bool endsWell(int rank) {
    if (phase() == Phase::kDone) return rank != next();
    return phase() == Phase::kNoSums && !isLarge() && rank != victim();
  }
  // Whether the member has a limit, at which it notices the stop. Where all others end well nobody has one.
  static bool isLate(int rank) { return rank != victim() && !endsWell(rank); }
  void expectSumsOf(int rank) {
    EXPECT_TRUE(failureOf(futureOf(rank)).ok());
    std::vector<uint64_t> rows;
    std::vector<float> values;
    for (uint64_t row = 0; row < rows_; ++row)
      for (int owner = 0; owner < kMembers; ++owner) {
        rows.push_back(4 * row + static_cast<uint64_t>(owner));
        for (uint64_t i = 0; i < kWidth; ++i) values.push_back(static_cast<float>(owner + 1) + static_cast<float>(i));
      }
    EXPECT_EQ(member(rank).sumIndices(kWidth), rows);
    EXPECT_EQ(member(rank).sumValues(kWidth), values);
  }

  // The victim, or the member after it, gets what the phase allows.
  static void hold(TappedJob& job) {
    switch (phase()) {
      case Phase::kAbsent: return;
      case Phase::kBegun: return job.hold(victim(), [](int, const Message&) { return true; });
      case Phase::kStarted:
        return job.hold(victim(), [](int, const Message& message) { return message.kind != MessageKind::kStart; });
      case Phase::kMiddle:
        return job.hold(victim(), [passes = 3](int, const Message& message) mutable {
          return message.kind != MessageKind::kStart && --passes < 0;
        });
      case Phase::kNoSums:
        // After its result nothing of a member: chunks of its sums follow.
        return job.hold(victim(), [done = std::set<int>()](int from, const Message& message) mutable {
          if (message.kind == MessageKind::kResult) done.insert(from);
          return done.contains(from);
        });
      case Phase::kDone:
        // Acknowledgements pass: the victim needs the sums of this member.
        return job.hold(next(), [from = victim(), isDone = false](int sender, const Message& message) mutable {
          if (sender != from) return false;
          isDone = isDone || message.kind == MessageKind::kResult;
          return isDone && message.kind != MessageKind::kAck;
        });
    }
  }
  static void waitForPhase(TappedJob& job) {
    if (phase() == Phase::kDone) return job.waitUntilHeld(next(), 1);
    if (phase() != Phase::kAbsent) job.waitUntilHeld(victim(), kMembers - 1);
  }

  const uint64_t rows_ = 300;
  const group::SparseShape shape_{{4 * rows_, kWidth}, 1};
  test::SparseMembers<float> members_ = test::SparseMembers<float>(kMembers);
  std::vector<Future<void>> futures_ = std::vector<Future<void>>(kMembers);
};

TEST_P(SparsePhase, InWhichAMemberIsKilledFailsThoseThatNeedIt) {
  TappedJob job(kMembers, options());
  hold(job);
  for (int rank = 0; rank < kMembers; ++rank) start(job, rank);
  waitForPhase(job);
  for (int rank = 0; rank < kMembers; ++rank)
    if (endsWell(rank)) expectSumsOf(rank);
  job.kill(victim());
  for (int rank = 0; rank < kMembers; ++rank) {
    if (rank == victim()) continue;
    if (!endsWell(rank)) TappedJob::expectLoss(futureOf(rank), victim());
    TappedJob::expectLoss(barrier(job.group(rank)), victim());
  }
}

TEST_P(SparsePhase, InWhichAMemberStopsIsNamedAtTheDeadlineAndTheGroupGoesOn) {
  EXPECT_TRUE(test::withLongerLimits(milliseconds(250), [&](Duration limit) {
    TappedJob job(kMembers, options());
    hold(job);
    for (int rank = 0; rank < kMembers; ++rank) start(job, rank, isLate(rank) ? limit : kNoTimeout);
    auto named = ::testing::AssertionSuccess();
    for (int rank = 0; rank < kMembers; ++rank) {
      if (rank == victim()) continue;
      const Status why = failureOf(futureOf(rank));
      if (why.ok() && endsWell(rank)) {
        expectSumsOf(rank);
        continue;
      }
      EXPECT_EQ(why.code(), Code::kDeadlineExceeded) << why.toString();
      if (endsWell(rank)) named = ::testing::AssertionFailure() << "rank " << rank << " was slow: " << why.message();
      // On a busy machine others may not have come so far.
      if (auto victims = contains(why.message(), "worker '" + TappedJob::nameOf(victim()) + "'"); !victims)
        named = std::move(victims);
    }
    job.letGo();
    if (phase() == Phase::kAbsent) futureOf(victim()) = member(victim()).start(job.group(victim()), shape_);
    const Status late = failureOf(futureOf(victim()));
    EXPECT_TRUE(late.ok() || late.code() == Code::kDeadlineExceeded) << late.toString();
    test::sumOfAll(job.groups(), shape_, members_);
    test::expectSums(shape_, members_);
    return named;
  }));
}

INSTANTIATE_TEST_SUITE_P(Cases, SparsePhase,
                         ::testing::Combine(::testing::Values(Case{Phase::kAbsent}, Case{Phase::kBegun},
                                                              Case{Phase::kNoSums}, Case{Phase::kDone},
                                                              Case{Phase::kBegun, true}, Case{Phase::kStarted, true},
                                                              Case{Phase::kMiddle, true}, Case{Phase::kNoSums, true},
                                                              Case{Phase::kDone, true}),
                                            ::testing::Values(0, 2)),
                         nameOf);

}  // namespace
}  // namespace treadle::sparse_phases_test

// The fault matrix: one member of a group is killed, stops or does not come, in each phase of each operation by each
// algorithm that can do it. The phases are those of fault_case.h, the operations those of cell.h; the table in
// docs/rooms/group.md says which members must fail and how. Whatever happens, each operation ends, the error names the
// member, no thread spins, and the other members go on.

#include <ctime>
#include <set>

#include "tests/core/group/fault_job.h"

namespace treadle::fault_matrix_test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using test::Called;
using test::Case;
using test::contains;
using test::expectResult;
using test::failureOf;
using test::FaultJob;
using test::Phase;
using test::Seat;
using test::Setting;

Duration processorTime() {
  timespec time{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}

// All operations are pending, `pending` too.
void expectNoProcessorUse(Future<void> pending) {
  EXPECT_TRUE(test::eventually([&] {
    const Duration before = processorTime();
    EXPECT_THROW(pending.wait(milliseconds(500)), TimeoutError);
    return processorTime() - before < milliseconds(25);
  }));
}

// A group of all but the victim does its work, with small data and with large.
void expectGroupOfOthers(FaultJob& job) {
  std::vector<std::string> names = job.job().local().names();
  names.erase(names.begin() + job.victim());
  std::vector<ProcessGroup> groups;
  for (int rank = 0; rank < job.size(); ++rank)
    if (rank != job.victim()) groups.push_back(ProcessGroup::make(job.job().worker(rank), names, {.name = "others"}));
  for (size_t count : {size_t{100}, size_t{100'000}}) {
    std::vector<std::vector<int32_t>> data(groups.size(), std::vector<int32_t>(count, 3));
    std::vector<Future<void>> futures;
    for (size_t rank = 0; rank < groups.size(); ++rank)
      futures.push_back(allReduce(groups[rank], std::span(data[rank])));
    test::waitAll(futures);
    for (const auto& mine : data) EXPECT_EQ(mine, std::vector<int32_t>(count, 3 * static_cast<int32_t>(groups.size())));
  }
}

// ---- killed

void expectLoss(FaultJob& job, const Status& why) {
  EXPECT_EQ(why.code(), Code::kPeerLost) << why.toString();
  EXPECT_EQ(why.worker(), test::LocalJob::nameOf(job.victim()));
  EXPECT_TRUE(contains(why.message(), job.nameOf(job.victim())));
}

class KilledMember : public ::testing::TestWithParam<Setting> {};

// In each phase of each cell at once.
TEST_P(KilledMember, IsNamedByThoseThatNeedItAndByNoOther) {
  FaultJob job(GetParam(), test::casesOf(GetParam(), {Phase::kAbsent, Phase::kBegun, Phase::kAgreed, Phase::kMoving,
                                                      Phase::kDone}));
  job.forAll([&](size_t index, const Case& one, Seat& seat) {
    if (one.calls(seat.rank())) seat.call(index, one.cell);
  });
  ASSERT_TRUE(job.park());
  const int other = job.victim() == 0 ? 1 : 0;
  expectNoProcessorUse(job.seat(other).calls(0).front().future);
  job.forAll([&](size_t index, const Case& one, Seat& seat) {
    if (seat.rank() == job.victim() && one.phase == Phase::kDone) expectResult(seat.calls(index).front());
  });
  job.job().local().kill(job.victim());
  job.forOthers([&](size_t index, const Case& one, Seat& seat) {
    const Called& called = seat.calls(index).front();
    if (one.endsWell[static_cast<size_t>(seat.rank())]) return expectResult(called);
    expectLoss(job, failureOf(called.future));
  });
  job.forOthers(
      [&](size_t index, const Case&, Seat& seat) { expectLoss(job, failureOf(barrier(seat.handle(index)))); });
  expectGroupOfOthers(job);
}

INSTANTIATE_TEST_SUITE_P(Members, KilledMember,
                         ::testing::Values(Setting{3, 0}, Setting{.size = 3, .victim = 1, .most = 3}, Setting{3, 2},
                                           Setting{5, 0}, Setting{5, 3}, Setting{17, 0}, Setting{17, 5},
                                           Setting{17, 12}, Setting{.size = 6, .victim = 4, .hosts = 2}),
                         test::settingName);

// ---- stopped, or late

// In a tree, agreement does not depend on the algorithm of the data. So the phases before it are tested with one small
// and one large cell: late members ask all others, with a time limit, and every cell would ask at the same time.
std::vector<Case> casesToStop(const Setting& setting) {
  std::vector<Case> cases;
  std::set<std::pair<bool, Phase>> seen;
  for (Case& one : test::casesOf(
           setting, {Phase::kAbsent, Phase::kLate, Phase::kBegun, Phase::kAgreed, Phase::kMoving, Phase::kDone})) {
    const bool isBefore = one.phase < Phase::kAgreed;
    if (isBefore && one.cell.inTree() && !seen.emplace(one.cell.small(), one.phase).second) continue;
    cases.push_back(std::move(one));
  }
  return cases;
}

class StoppedMember : public ::testing::TestWithParam<Setting> {
 protected:
  // The error reports what is missing: the members that have not come, by name; when all have, the one that the first
  // late member gets nothing from. The others adopt its report. Algorithms that pass data on name the neighbour, which
  // waits itself.
  static bool namesCause(FaultJob& job, const Case& one, const std::string& text) {
    const std::string victim = job.nameOf(job.victim()), notStarted = "it has not been started by ",
                      noAnswer = "no answer has come from ";
    // On a busy machine other members may answer late too.
    const auto lists = [&](const std::string& what) {
      const size_t list = text.find(what);
      return list != std::string::npos && contains(text.substr(list), victim);
    };
    switch (one.phase) {
      case Phase::kLate: return lists(notStarted);
      case Phase::kAbsent: return one.cell.inTree() ? lists(noAnswer) : text.ends_with(notStarted + victim);
      case Phase::kDone: return contains(text, job.nameOf(one.missing->from)) || contains(text, victim);
      case Phase::kBegun:
        if (one.keepsItsStart()) return lists(noAnswer);
        [[fallthrough]];
      case Phase::kAgreed:
      case Phase::kMoving:
        if (one.cell.algorithm == group::Algorithm::kDirect && !contains(text, victim)) return false;
        return namesNoneThatEndsWell(job, one, text) &&
               (contains(text, " chunks have come from ") || contains(text, " has taken "));
    }
    return false;
  }

  // The members that the error names as the cause are the victim or wait for it.
  static bool namesNoneThatEndsWell(FaultJob& job, const Case& one, const std::string& text) {
    const std::string cause = text.substr(std::min(text.find("was not done in"), text.size()));
    for (int rank = 0; rank < job.size(); ++rank)
      if (rank != job.victim() && one.endsWell[static_cast<size_t>(rank)] && contains(cause, job.nameOf(rank)))
        return false;
    return true;
  }

  // Each other member's operation ends well or at its deadline. A busy machine may be too slow for the error to report
  // all.
  static ::testing::AssertionResult expectDeadlines(FaultJob& job) {
    auto outcome = ::testing::AssertionSuccess();
    job.forOthers([&](size_t index, const Case& one, Seat& seat) {
      const Called& called = seat.calls(index).front();
      if (one.endsWell[static_cast<size_t>(seat.rank())]) return expectResult(called);
      const Status why = failureOf(called.future);
      EXPECT_EQ(why.code(), Code::kDeadlineExceeded) << why.toString();
      EXPECT_TRUE(contains(why.message(), "was not done in"));
      if (!namesCause(job, one, why.message()))
        outcome = ::testing::AssertionFailure()
                  << one.name() << ", " << job.nameOf(seat.rank()) << ": " << why.message();
    });
    return outcome;
  }

  // The victim gets what was kept from it, calls what it had not called, and gets the outcome of each operation.
  static void wake(FaultJob& job) {
    Seat& seat = job.seat(job.victim());
    job.letGo();
    for (size_t index = 0; index < job.cases().size(); ++index) {
      const Case& one = job.cases()[index];
      SCOPED_TRACE(one.name());
      if (!one.calls(job.victim())) seat.call(index, one.cell);
      const Called& called = seat.calls(index).front();
      const Status why = failureOf(called.future);
      EXPECT_TRUE(why.ok() || why.code() == Code::kDeadlineExceeded) << why.toString();
      const bool othersEndedWell =
          std::count(one.endsWell.begin(), one.endsWell.end(), true) >= (one.cell.isSend() ? 1 : job.size() - 1);
      EXPECT_TRUE(why.ok() || !othersEndedWell) << why.toString();
      EXPECT_TRUE(!why.ok() || called.hasResult());
    }
  }

  static void expectToGoOn(FaultJob& job) {
    job.forAll([&](size_t index, const Case& one, Seat& seat) { seat.call(index, one.cell); });
    job.forAll([&](size_t index, const Case& one, Seat& seat) {
      SCOPED_TRACE(one.name() + " again, " + job.nameOf(seat.rank()));
      expectResult(seat.calls(index).back());
    });
  }
};

TEST_P(StoppedMember, IsNamedAtTheDeadlineAndTheGroupGoesOnWithIt) {
  const std::vector<Case> cases = casesToStop(GetParam());
  EXPECT_TRUE(test::withLongerLimits(seconds(1), [&](Duration limit) {
    FaultJob job(GetParam(), cases);
    job.forAll([&](size_t index, const Case& one, Seat& seat) {
      if (one.calls(seat.rank())) seat.prepare(index, one.cell);
    });
    job.forAll([&](size_t index, const Case& one, Seat& seat) {
      const bool stops = seat.rank() == job.victim();
      if (one.calls(seat.rank())) seat.start(index, one.cell, stops ? kNoTimeout : limit);
    });
    if (auto parked = job.park(); !parked) return parked;
    for (size_t index = 0; index < cases.size(); ++index)
      if (cases[index].phase != Phase::kLate) job.seat(job.victim()).silence(index);
    auto outcome = expectDeadlines(job);
    expectGroupOfOthers(job);
    wake(job);
    expectToGoOn(job);
    return outcome;
  }));
}

INSTANTIATE_TEST_SUITE_P(Members, StoppedMember,
                         ::testing::Values(Setting{3, 1}, Setting{5, 3}, Setting{17, 12},
                                           Setting{.size = 4, .victim = 1, .hosts = 2}),
                         test::settingName);

}  // namespace
}  // namespace treadle::fault_matrix_test

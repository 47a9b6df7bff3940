#pragma once
// The fault matrix with all members in this process: each case is a group of its own in one job, and all cases are at
// their phases at the same time. One thread.

#include "tests/core/group/fault_case.h"
#include "tests/core/group/group_job.h"

namespace treadle::test {

inline void expectResult(const Called& called) {
  const Status why = failureOf(called.future);
  EXPECT_TRUE(why.ok()) << why.toString();
  EXPECT_TRUE(called.hasResult());
}

// The name of a test.
inline std::string settingName(const ::testing::TestParamInfo<Setting>& info) {
  const Setting& setting = info.param;
  const std::string hosts = setting.hosts > 1 ? "On" + std::to_string(setting.hosts) + "Hosts" : "";
  return "Rank" + std::to_string(setting.victim) + "Of" + std::to_string(setting.size) + hosts;
}

class FaultJob {
 public:
  FaultJob(const Setting& setting, const std::vector<Case>& cases)
      : setting_(setting),
        cases_(cases),
        taps_(static_cast<size_t>(setting.size)),
        job_(setting.size, {}, [this](int rank, group::GroupService& service) -> cluster::MessageHandler& {
          tap(rank).connect(service);
          return tap(rank);
        }) {
    job_.spreadOver(setting.hosts);
    for (int rank = 0; rank < size(); ++rank)
      seats_.emplace_back(job_.worker(rank), tap(rank), job_.local().names(), rank);
    for (size_t index = 0; index < cases_.size(); ++index) {
      std::vector<Future<void>> meeting;
      for (Seat& seat : seats_) meeting.push_back(seat.meet(cases_[index]));
      waitAll(meeting);
      for (Seat& seat : seats_) seat.setRule(index, cases_[index]);
    }
  }

  int size() const { return setting_.size; }
  int victim() const { return setting_.victim; }
  const std::vector<Case>& cases() const { return cases_; }
  GroupJob& job() { return job_; }
  Tap& tap(int rank) { return taps_[static_cast<size_t>(rank)]; }
  Seat& seat(int rank) { return seats_[static_cast<size_t>(rank)]; }
  // "worker 'w1' (rank 1)".
  std::string nameOf(int rank) { return link::describe({LocalJob::nameOf(rank), rank}); }

  // `f(index, case, seat)` for each member that takes part in each case.
  template <class F>
  void forAll(F f) {
    for (size_t index = 0; index < cases_.size(); ++index)
      for (Seat& seat : seats_)
        if (cases_[index].cell.takesPart(seat.rank())) f(index, cases_[index], seat);
  }
  // The same without the victim; a failure names the case and the member.
  template <class F>
  void forOthers(F f) {
    forAll([&](size_t index, const Case& one, Seat& seat) {
      if (seat.rank() == victim()) return;
      SCOPED_TRACE(one.name() + ", " + nameOf(seat.rank()));
      f(index, one, seat);
    });
  }

  // Returns when each case has come to its phase. Fails when an operation has failed before; a case that stays behind
  // is a failure of the test.
  ::testing::AssertionResult park() {
    size_t parked = 0;  // so many cases, which stay at their phases
    const auto came = eventually([&] {
      while (parked < cases_.size() && isParked(parked)) ++parked;
      return parked == cases_.size() || hasFailed(parked);
    });
    if (!came) ADD_FAILURE() << came.message() << ": " << cases_[parked].name();
    for (size_t index = 0; index < cases_.size(); ++index)
      if (hasFailed(index))
        return ::testing::AssertionFailure() << "an operation failed before its phase: " << cases_[index].name();
    return came;
  }

  // All messages that were held arrive, and none is held any more.
  void letGo() {
    for (Tap& tap : taps_) tap.letGo();
  }

 private:
  bool isParked(size_t index) {
    const Case& one = cases_[index];
    const std::optional<int> held = one.heldMember();
    if (held && !seat(*held).isHeld(index)) return false;
    for (size_t rank = 0; rank < one.endsWell.size(); ++rank)
      if (one.endsWell[rank] && !seats_[rank].calls(index).front().future.ready()) return false;
    return true;
  }
  bool hasFailed(size_t index) const {
    return std::any_of(seats_.begin(), seats_.end(), [&](const Seat& seat) {
      const std::deque<Called>& calls = seat.calls(index);
      return std::any_of(calls.begin(), calls.end(),
                         [](const Called& one) { return one.future.ready() && !failureOf(one.future).ok(); });
    });
  }

  const Setting setting_;
  const std::vector<Case> cases_;
  std::deque<Tap> taps_;
  std::deque<Seat> seats_;  // destroyed after the job: operations use their memory
  GroupJob job_;
};

}  // namespace treadle::test

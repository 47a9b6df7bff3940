// The fault matrix: one member of a group calls something else than the others, in each phase of each operation by each
// algorithm that can do it: another size, shape, type, reduction, root or operation, or two operations in the other
// order. The call fails on all members, each error names that member and both calls, and the group goes on: what was
// under way before ends well.

#include "tests/core/group/fault_job.h"

namespace treadle::mismatch_matrix_test {
namespace {

using group::OperationKind;
using test::Case;
using test::Cell;
using test::contains;
using test::expectResult;
using test::failureOf;
using test::FaultJob;
using test::Phase;
using test::Seat;
using test::Setting;

// When the member calls it.
enum class Moment {
  kFirst,   // before the others call theirs
  kLast,    // when the others wait for it
  kOrder,   // in place of the next operation, which it has swapped with this one
  kMoving,  // while it waits in the middle of the operation before
  kDone,    // when it has ended the operation before and another member has not
};

struct Meeting {
  Case one;    // with the cell that the others call; kMoving and kDone: and that all have called before
  Cell other;  // what the member calls
  Moment moment = Moment::kFirst;

  std::string name() const {
    constexpr std::string_view kNames[] = {"first", "last", "in the other order", "moving", "done"};
    return one.cell.name() + " against " + other.name() + ", " + std::string(kNames[static_cast<size_t>(moment)]);
  }
};

// The other calls that the member makes.
std::vector<Cell> othersOf(const Cell& cell) {
  std::vector<Cell> others;
  const auto add = [&](auto change) { change(others.emplace_back(cell)); };
  if (cell.isBarrier()) {
    add([](Cell& other) { other.operation = OperationKind::kBroadcast, other.count = 1; });
    return others;
  }
  add([](Cell& other) { --other.count; });
  add([](Cell& other) { other.shape = "float32 [2, 3]"; });
  if (!cell.isSend()) add([](Cell& other) { other.operation = OperationKind::kBarrier, other.count = 0; });
  const bool sizesVary = cell.operation == OperationKind::kAllToAllV;
  if ((cell.operation == OperationKind::kAllToAll && !cell.small()) || sizesVary) {
    add([=](Cell& other) { other.operation = sizesVary ? OperationKind::kAllToAll : OperationKind::kAllToAllV; });
  }
  if (cell.hasRoot()) add([](Cell& other) { other.root = (other.root + 1) % other.size; });
  if (cell.reduces()) {
    add([](Cell& other) { other.dataType = group::DataType::kFloat32; });
    add([](Cell& other) { other.reduceOp = ReduceOp::kMax; });
  }
  return others;
}

// Groups of up to 16 members get all differences at the moments before the operation; other meetings get one each, in
// turn.
std::vector<Meeting> meetingsOf(const Setting& setting) {
  std::vector<Meeting> meetings;
  for (const Cell& cell : test::cellsOf(setting)) {
    const std::vector<Cell> others = othersOf(cell);
    const auto any = [&] { return others[meetings.size() % others.size()]; };
    for (Moment moment : {Moment::kFirst, Moment::kLast, Moment::kOrder})
      for (const Cell& other : setting.size <= group::kMostAllToAll ? others : std::vector{any()})
        meetings.push_back({*test::caseOf(cell, Phase::kAbsent, setting.victim), other, moment});
    const Phase middle = cell.small() ? Phase::kBegun : Phase::kMoving;
    for (auto [moment, phase] : {std::pair(Moment::kMoving, middle), {Moment::kDone, Phase::kDone}})
      if (auto before = test::caseOf(cell, phase, setting.victim))
        meetings.push_back({std::move(*before), any(), moment});
  }
  return meetings;
}

class DifferentCall : public ::testing::TestWithParam<Setting> {
 protected:
  DifferentCall() {
    for (const Meeting& meeting : meetings_) cases_.push_back(meeting.one);
    job_.emplace(GetParam(), cases_);
  }

  int victim() const { return GetParam().victim; }
  // Whether this is the second call in its group.
  bool comesSecond(size_t index) const {
    const Moment moment = meetings_[index].moment;
    return moment == Moment::kMoving || moment == Moment::kDone;
  }

  // `f(index, meeting, seat)` for each member that takes part in each meeting for which `isMeant`.
  template <class Meant, class F>
  void forAll(Meant isMeant, F f) {
    job_->forAll([&](size_t index, const Case&, Seat& seat) {
      if (!isMeant(index)) return;
      SCOPED_TRACE(meetings_[index].name() + ", " + job_->nameOf(seat.rank()));
      f(index, meetings_[index], seat);
    });
  }
  auto at(Moment moment) {
    return [this, moment](size_t index) { return meetings_[index].moment == moment; };
  }
  static bool always(size_t) { return true; }

  void call(size_t index, const Meeting& meeting, Seat& seat) {
    seat.call(index, seat.rank() == victim() ? meeting.other : meeting.one.cell);
  }
  void callInTheOtherOrder(size_t index, const Meeting& meeting, Seat& seat) {
    call(index, meeting, seat);
    seat.call(index, seat.rank() == victim() ? meeting.one.cell : meeting.other);
  }

  // How many starts come to the member: to the victim from the others, when they alone have called, or the other way.
  int startsTo(int rank, const Meeting& meeting) const {
    const bool isVictim = rank == victim();
    const Cell& called = isVictim ? meeting.one.cell : meeting.other;
    if (called.isSend()) return 1;
    if (!called.inTree()) return isVictim ? job_->size() - 1 : 1;
    // A start goes up when those of the children are there, and none comes down.
    const std::vector<int> children = group::childrenOf(victim(), job_->size());
    if (isVictim) return static_cast<int>(children.size());
    return children.empty() && rank == group::parentOf(victim()) ? 1 : 0;
  }
  void awaitStarts(size_t index, const Meeting& meeting, Seat& seat) {
    seat.waitForMore(index, startsTo(seat.rank(), meeting));
  }

  // The victim has called `victims`, and the others `others`. Where only the sizes of an all-to-all with blocks of any
  // sizes differ, the message has elements: each member alone knows the sizes of its blocks.
  void expectMismatch(const Cell& victims, const Cell& others, const Future<void>& future) {
    const Status why = failureOf(future);
    EXPECT_EQ(why.code(), Code::kInvalidArgument) << why.toString();
    EXPECT_TRUE(contains(why.message(), job_->nameOf(victim())));
    if (victims.operation == OperationKind::kAllToAllV && victims.description() == others.description()) {
      EXPECT_TRUE(contains(why.message(), " elements to worker '") && contains(why.message(), ", which expects "));
      return;
    }
    const int partner = others.isSend() && others.root == victim() ? others.receiver : others.root;
    EXPECT_TRUE(contains(why.message(), "calls " + victims.calledBy(victim())));
    EXPECT_TRUE(contains(why.message(), "calls " + others.calledBy(partner)));
  }

  const std::vector<Meeting> meetings_ = meetingsOf(GetParam());
  std::vector<Case> cases_;
  std::optional<FaultJob> job_;
};

TEST_P(DifferentCall, FailsOnAllAndNamesBothAndTheGroupGoesOn) {
  const auto second = [this](size_t index) { return comesSecond(index); };
  // The operations that the difference comes in the middle of.
  forAll(second, [](size_t index, const Meeting& meeting, Seat& seat) { seat.call(index, meeting.one.cell); });
  ASSERT_TRUE(job_->park());

  const auto callers = [&](bool victims) {
    return [this, victims](size_t index, const Meeting& meeting, Seat& seat) {
      if ((seat.rank() == victim()) == victims) call(index, meeting, seat);
    };
  };
  const auto waiters = [&](bool victims) {
    return [this, victims](size_t index, const Meeting& meeting, Seat& seat) {
      if ((seat.rank() == victim()) == victims) awaitStarts(index, meeting, seat);
    };
  };
  forAll(at(Moment::kFirst), callers(true));
  forAll(at(Moment::kFirst), waiters(false));
  forAll(at(Moment::kFirst), callers(false));
  forAll(at(Moment::kLast), callers(false));
  forAll(at(Moment::kLast), waiters(true));
  forAll(at(Moment::kLast), callers(true));
  forAll(second, [&](size_t index, const Meeting& meeting, Seat& seat) { call(index, meeting, seat); });
  forAll(at(Moment::kOrder),
         [&](size_t index, const Meeting& meeting, Seat& seat) { callInTheOtherOrder(index, meeting, seat); });

  forAll(always, [&](size_t index, const Meeting& meeting, Seat& seat) {
    const auto& calls = seat.calls(index);
    expectMismatch(meeting.other, meeting.one.cell, calls[comesSecond(index) ? 1 : 0].future);
    if (meeting.moment == Moment::kOrder) expectMismatch(meeting.one.cell, meeting.other, calls[1].future);
  });
  job_->letGo();
  forAll(second, [&](size_t index, const Meeting&, Seat& seat) { expectResult(seat.calls(index).front()); });
  // Now all call the same.
  forAll(always, [](size_t index, const Meeting& meeting, Seat& seat) { seat.call(index, meeting.one.cell); });
  forAll(always, [](size_t index, const Meeting&, Seat& seat) { expectResult(seat.calls(index).back()); });
}

INSTANTIATE_TEST_SUITE_P(Members, DifferentCall,
                         ::testing::Values(Setting{3, 1}, Setting{5, 3}, Setting{17, 5}, Setting{17, 12},
                                           Setting{.size = 4, .victim = 1, .hosts = 2}),
                         test::settingName);

}  // namespace
}  // namespace treadle::mismatch_matrix_test

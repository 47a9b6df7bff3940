// A member of process groups that is killed, or stopped for longer than its peers wait, in each phase of each operation
// by each algorithm. It is a process of its own that holds blocks of the others' memory, as they hold blocks of its
// memory. Each operation that needs it fails with its name, the others end well, and nothing is left behind.

#include <signal.h>

#include "tests/faults/member.h"
#include "tests/faults/survivor.h"

namespace treadle::killed_member_test {
namespace {

using link::Connection;
using test::Case;
using test::contains;
using test::failureOf;
using test::Holdings;
using test::kMembers;
using test::Member;

class MemberProcess : public ::testing::Test {
 protected:
  // None of them is lost when the test is over.
  void TearDown() override {
    for (Member& survivor : survivors_) survivor.membership().finish();
  }

  // The survivors know each other and have worked together, and then the victim's process starts.
  void meet(Duration heartbeatTimeout = test::kHangs) {
    for (int rank = 0; rank < kMembers.size; ++rank)
      if (rank != kMembers.victim) survivors_.emplace_back(rank, *pool_, heartbeatTimeout);
    Member::join(survivors_.front(), survivors_.back());
    Member::join(survivors_.back(), survivors_.front());
    ASSERT_TRUE(test::eventually([&] { return allLendTo(0) && allLendTo(2); }));
    expectPairWorks();
    for (Member& survivor : survivors_) survivor.seat().skipGroups();
    ASSERT_TRUE(test::eventuallyReleased([&] { return pool_->counters().usedBytes == 0; }));
    before_ = Holdings::of(*pool_);
    startVictim();
    ASSERT_TRUE(test::eventually([&] { return allLendTo(kMembers.victim); }));
  }
  // From now on silence counts. The victim sends nothing by itself.
  void watch() {
    for (Member& survivor : survivors_) {
      survivor.membership().startWatch();
      before_.usedBytes += memory::kSmallestBlock;  // its pulse
    }
  }

  // All cases come to their phases.
  void park() {
    for (size_t index = 0; index < cases_.size(); ++index) {
      std::vector<Future<void>> meeting;
      for (Member& survivor : survivors_) meeting.push_back(survivor.seat().meet(cases_[index]));
      test::waitAll(meeting);
      for (Member& survivor : survivors_) survivor.seat().setRule(index, cases_[index]);
    }
    std::vector<Future<void>> ready;
    for (Member& survivor : survivors_) ready.push_back(survivor.ready());
    test::waitAll(ready);
    forAll([&](size_t index, const Case& one, test::Seat& seat) { seat.call(index, one.cell); });
    ASSERT_EQ("there", line());
    forAll([&](size_t index, const Case& one, test::Seat& seat) {
      if (one.heldMember() == seat.rank()) seat.waitUntilHeld(index);
      if (one.endsWell[static_cast<size_t>(seat.rank())]) {
        EXPECT_TRUE(failureOf(seat.calls(index).front().future).ok());
        EXPECT_TRUE(seat.calls(index).front().hasResult());
      }
    });
    EXPECT_GT(pool_->counters().usedBytes, before_.usedBytes);  // lent; the victim looks at its own pool
  }

  void signal(int number) { victim_->signal(number); }
  void awaitEnd() {
    EXPECT_TRUE(test::readable(victim_->endFd(), "the victim's end"));
    EXPECT_TRUE(victim_->takeEnd()->killed);
    victim_.reset();
  }

  // Operations that need the victim fail with its name, and so do all later operations of the group. A group of the
  // others works.
  void expectLoss() {
    const std::string name = test::LocalJob::nameOf(kMembers.victim);
    forAll([&](size_t index, const Case& one, test::Seat& seat) {
      std::vector<Status> all = {failureOf(barrier(seat.handle(index)))};
      if (!one.endsWell[static_cast<size_t>(seat.rank())]) all.push_back(failureOf(seat.calls(index).front().future));
      for (const Status& why : all) {
        EXPECT_EQ(why.code(), Code::kPeerLost) << why.toString();
        EXPECT_EQ(why.worker(), name);
        EXPECT_TRUE(contains(why.message(), "'" + name + "' (rank 1)"));
      }
    });
    expectPairWorks();
  }

  // Once its process has ended.
  void expectNothingLeft() {
    for (Member& survivor : survivors_) survivor.tap().drop();
    EXPECT_TRUE(test::eventuallyReleased([&] {
      pool_->allocate(memory::kSmallestBlock).reset();  // the pool looks after lost blocks when one is wanted
      return Holdings::of(*pool_) == before_;
    })) << "before: "
        << before_ << "\nnow:    " << Holdings::of(*pool_);
  }

 private:
  bool allLendTo(int peer) {
    return std::all_of(survivors_.begin(), survivors_.end(), [&](Member& one) { return one.lendsTo(peer); });
  }

  // A group of the survivors.
  void expectPairWorks() {
    std::vector<std::vector<int32_t>> data(survivors_.size(), std::vector<int32_t>(100'000, 4));
    std::vector<Future<void>> futures;
    for (Member& survivor : survivors_)
      futures.push_back(allReduce(ProcessGroup::make(survivor.job(), {"w0", "w2"}), std::span(data[futures.size()])));
    test::waitAll(futures);
    for (const auto& mine : data) EXPECT_EQ(mine, std::vector<int32_t>(100'000, 8));
  }

  void startVictim() {
    static int number = 0;
    io::ProcessOptions options;
    options.program = test::testProgram("faults_member_program");
    options.arguments = {"unix:treadle-member-" + std::to_string(::getpid()) + "-" + std::to_string(++number)};
    victim_.emplace(valueOrThrow(io::Process::start(options)));
    const io::Address address = valueOrThrow(io::Address::parse(line()));
    for (Member& survivor : survivors_)
      for (auto kind : {Connection::Kind::kCalls, Connection::Kind::kServing})
        survivor.attach(kMembers.victim, valueOrThrow(io::connectTo(address, test::patience())), kind);
  }

  // The next line of the victim's output.
  std::string line() { return test::readLine(victim_->standardOutput().get()); }

  // `f(index, case, seat)` for each survivor that takes part in each case.
  template <class F>
  void forAll(F f) {
    for (size_t index = 0; index < cases_.size(); ++index)
      for (Member& survivor : survivors_)
        if (cases_[index].cell.takesPart(survivor.seat().rank())) {
          SCOPED_TRACE(cases_[index].name() + ", rank " + std::to_string(survivor.seat().rank()));
          f(index, cases_[index], survivor.seat());
        }
  }

  const std::vector<Case> cases_ = test::memberCases();
  const std::shared_ptr<memory::BlockPool> pool_ = valueOrThrow(memory::BlockPool::make(256U << 20));
  std::deque<Member> survivors_;
  std::optional<io::Process> victim_;
  Holdings before_;
};

TEST_F(MemberProcess, thatIsKilledInEachPhaseIsNamedAndLeavesNothing) {
  ASSERT_NO_FATAL_FAILURE(meet());
  park();
  signal(SIGKILL);
  awaitEnd();
  expectLoss();
  expectNothingLeft();
}

TEST_F(MemberProcess, thatIsStoppedInEachPhaseIsNamedWhenItsPeersHaveWaited) {
  ASSERT_NO_FATAL_FAILURE(meet(std::chrono::seconds(3)));
  park();
  signal(SIGSTOP);
  watch();
  expectLoss();
  signal(SIGKILL);
  awaitEnd();
  expectNothingLeft();
}

}  // namespace
}  // namespace treadle::killed_member_test

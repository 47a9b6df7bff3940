// A pass in a handler that must not wait, because as many as are allowed wait already: it fails, on all ranks, and the
// numbers of the group's operations still match. One whose exact channel has gone may wait.

#include <torch/csrc/autograd/engine.h>

#include <map>

#include "tests/support/expect_error.h"
#include "tests/support/gate.h"
#include "tests/train/ddp/net.h"
#include "treadle/core/io/executor.h"

namespace treadle::test::ddp_test {
namespace {

// What the handlers of rank 0 use.
struct Setting {
  Gate isFull, mayGo, isBetween, wasTried, mayEnd;
  std::shared_ptr<DistributedDataParallel<Net>> replica;
};
Setting* setting = nullptr;

void takeTheOnlyPlace() {
  const io::Executor::Permit permit;
  EXPECT_TRUE(permit.status().ok());
  setting->isFull.open();
  setting->mayGo.wait();
}

void passOfRankZero(bool isBroken) {
  const at::Tensor input = inputOf(0, 0).requires_grad_();
  setting->replica->forward(isBroken ? Broken::apply(input) : input, false).square().mean().backward();
}

void agreeOfRankZero() { setting->replica->agreeToSkip(true); }
void verifyOfRankZero() { setting->replica->verifyReplicas(); }

// Holds it, if it gets it.
void tryToTakeThePlace() {
  const io::Executor::Permit permit;
  setting->wasTried.open();
  setting->mayEnd.wait();
}

// By what averages: sums of a service that are still under way must not meet those of the next pass.
class RefusedWait : public ::testing::TestWithParam<AverageBy> {
 protected:
  // Whose exchange follows the exact channel.
  static DdpOptions withBuffers() {
    DdpOptions options = smallBuckets();
    options.buffers = Buffers::kAverage;
    options.averageBy = GetParam();
    return options;
  }
  // Rank 1 calls the handlers of rank 0.
  RefusedWait() {
    setting = &setting_;
    job_.onAll([&](Worker& worker) {
      const int rank = worker.self().rank;
      replicas_[rank] = std::make_shared<DistributedDataParallel<Net>>(Net(0), ProcessGroup::make(worker, job_.names()),
                                                                       withBuffers());
    });
    setting_.replica = replicas_[0];
    place_ = job_[1].async<&takeTheOnlyPlace>("rank0");
    setting_.isFull.wait();
  }
  void pass() { replicas_[1]->forward(inputOf(1, 0), false).square().mean().backward(); }
  void expectPassFails() {
    EXPECT_EQ(statusOf<CancelledError>([&] { pass(); }).worker(), "rank0");
  }

  void freeThePlace() {
    setting_.mayGo.open();
    place_.wait();
  }
  void expectThatTheNextIsRight() {
    for (auto& replica : replicas_) (*replica)->zero_grad();
    auto there = job_[1].async<&passOfRankZero>("rank0", false);
    pass();
    there.wait();
    Net alone(0);
    alone->forward(at::cat({inputOf(0, 0), inputOf(1, 0)}), false).square().mean().backward();
    for (auto& replica : replicas_) EXPECT_TRUE(close((*replica)->first.grad(), alone->first.grad()));
  }

  Setting setting_;
  TensorJob job_{ranks(2),
                 Functions()
                     .add<&takeTheOnlyPlace>("takeTheOnlyPlace")
                     .add<&passOfRankZero>("passOfRankZero")
                     .add<&agreeOfRankZero>("agreeOfRankZero")
                     .add<&verifyOfRankZero>("verifyOfRankZero")
                     .add<&tryToTakeThePlace>("tryToTakeThePlace"),
                 {},
                 [](JoinOptions& options) { options.maxBlockedHandlers = 1; }};
  std::shared_ptr<DistributedDataParallel<Net>> replicas_[2];
  Future<void> place_;
};

TEST_P(RefusedWait, AtTheEndOfAPassFailsItOnAllRanks) {
  auto there = job_[1].async<&passOfRankZero>("rank0", false);
  expectPassFails();
  EXPECT_TRUE(contains(messageOf<ResourceError>([&] { there.wait(); }), "maxBlockedHandlers"));
  freeThePlace();
  expectThatTheNextIsRight();
}

// It would wait for the operations of the pass before, which rank 1 has not begun yet.
TEST_P(RefusedWait, AtTheBeginningOfAPassFailsItOnAllRanks) {
  EXPECT_THROW(job_[1].async<&passOfRankZero>("rank0", true).wait(), Error);
  EXPECT_THROW(job_[1].async<&passOfRankZero>("rank0", false).wait(), ResourceError);
  expectPassFails();
  expectPassFails();
  freeThePlace();
  expectThatTheNextIsRight();
}

// Another handler wants the place between the steps of the end, on a thread of its own.
TEST_P(RefusedWait, DoesNotMeetAPassWhoseExactChannelHasGone) {
  freeThePlace();
  (*setting_.replica)->bias.register_hook([](const at::Tensor&) {
    torch::autograd::Engine::get_default_engine().queue_callback([] {
      setting->isBetween.open();
      setting->wasTried.wait();
    });
  });
  auto there = job_[1].async<&passOfRankZero>("rank0", false);
  setting_.isBetween.wait();
  auto another = job_[1].async<&tryToTakeThePlace>("rank0");
  pass();
  EXPECT_NO_THROW(there.wait());
  setting_.mayEnd.open();
  another.wait();
  expectThatTheNextIsRight();
}

// They leave at once, and their operations go on in memory that lives as long.
TEST_P(RefusedWait, BetweenPassesLeavesTheOperationToItsEnd) {
  EXPECT_THROW(job_[1].async<&agreeOfRankZero>("rank0").wait(), ResourceError);
  EXPECT_TRUE(replicas_[1]->agreeToSkip(false));
  EXPECT_THROW(job_[1].async<&verifyOfRankZero>("rank0").wait(), ResourceError);
  replicas_[1]->verifyReplicas();
  freeThePlace();
  expectThatTheNextIsRight();
}

INSTANTIATE_TEST_SUITE_P(ByWhat, RefusedWait, ::testing::Values(AverageBy::kGroup, AverageBy::kService),
                         [](const auto& info) { return std::string(ddp::nameOf(info.param)); });

}  // namespace
}  // namespace treadle::test::ddp_test

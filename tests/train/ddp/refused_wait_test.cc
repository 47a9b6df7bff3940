// A pass in a handler that must not wait, because as many as are allowed wait already: it fails, on all ranks, and the
// numbers of the group's operations still match.

#include <map>

#include "tests/support/expect_error.h"
#include "tests/support/gate.h"
#include "tests/train/ddp/net.h"
#include "treadle/core/io/executor.h"

namespace treadle::test::ddp_test {
namespace {

// What the handlers of rank 0 use.
struct Setting {
  Gate isFull, mayGo;
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

class RefusedWait : public ::testing::Test {
 protected:
  // Rank 1 calls the handlers of rank 0.
  RefusedWait() {
    setting = &setting_;
    job_.onAll([&](Worker& worker) {
      const int rank = worker.self().rank;
      replicas_[rank] = std::make_shared<DistributedDataParallel<Net>>(Net(0), ProcessGroup::make(worker, job_.names()),
                                                                       smallBuckets());
    });
    setting_.replica = replicas_[0];
    place_ = job_[1].async<&takeTheOnlyPlace>("rank0");
    setting_.isFull.wait();
  }
  void pass() { replicas_[1]->forward(inputOf(1, 0), false).square().mean().backward(); }
  void expectPassFails() {
    EXPECT_EQ(statusOf<CancelledError>([&] { pass(); }).worker(), "rank0");
  }

  void expectThatTheNextIsRight() {
    setting_.mayGo.open();
    place_.wait();
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
                 Functions().add<&takeTheOnlyPlace>("takeTheOnlyPlace").add<&passOfRankZero>("passOfRankZero"),
                 {},
                 [](JoinOptions& options) { options.maxBlockedHandlers = 1; }};
  std::shared_ptr<DistributedDataParallel<Net>> replicas_[2];
  Future<void> place_;
};

TEST_F(RefusedWait, AtTheEndOfAPassFailsItOnAllRanks) {
  auto there = job_[1].async<&passOfRankZero>("rank0", false);
  expectPassFails();
  EXPECT_TRUE(contains(messageOf<ResourceError>([&] { there.wait(); }), "maxBlockedHandlers"));
  expectThatTheNextIsRight();
}

// It would wait for the operations of the pass before, which rank 1 has not begun yet.
TEST_F(RefusedWait, AtTheBeginningOfAPassFailsItOnAllRanks) {
  EXPECT_THROW(job_[1].async<&passOfRankZero>("rank0", true).wait(), Error);
  EXPECT_THROW(job_[1].async<&passOfRankZero>("rank0", false).wait(), ResourceError);
  expectPassFails();
  expectPassFails();
  expectThatTheNextIsRight();
}

}  // namespace
}  // namespace treadle::test::ddp_test

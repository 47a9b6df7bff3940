// Batches of several tensors on one member: limits and cancelling of one of them, and a pool without a free thread.

#include "tests/core/group/peer_of_names.h"

namespace treadle::push_pull_batch_test {
namespace {

using group::Offer;
using test::contains;
using test::failureOf;
using test::floats;

// Rank 0 is real, and its pool runs one task at a time.
class BatchTest : public test::PeerOfRankZero {
 protected:
  BatchTest() : PeerOfRankZero(2, {.executor = {.maxConcurrentHandlers = 1}}) {}
  // Whatever has not ended gives its memory back before that goes.
  ~BatchTest() override {
    futureOfA_.cancel();
    futureOfB_.cancel();
  }

  // Both in one batch.
  void orderTogether() { sendOffers({{Offer{"a", floats(a_->size())}, Offer{"b", floats(b_.size())}}}); }
  void offerBoth(Duration limitOfA = kNoTimeout) {
    futureOfA_ = pushPull(group_.withTimeout(limitOfA), "a", std::span(*a_));
    futureOfB_ = pushPull(group_, "b", std::span(b_));
  }
  void resize(size_t count) {
    a_->assign(count, 1);
    b_.assign(count, 2);
  }

  std::unique_ptr<std::vector<float>> a_ = std::make_unique<std::vector<float>>(10, 1.0F);
  std::vector<float> b_ = std::vector<float>(10, 2);
  Future<void> futureOfA_, futureOfB_;
};

// The other members get a sum that includes the data of the one that gave up.
TEST_F(BatchTest, GoesOnWithoutATensorThatIsLate) {
  offerBoth(std::chrono::seconds(1));  // the batch begins before that
  orderTogether();
  const group::Message start = nextStart();
  const Status why = failureOf(futureOfA_);
  EXPECT_EQ(why.code(), Code::kDeadlineExceeded) << why.toString();
  EXPECT_TRUE(contains(why.message(), "pushPull of 'a' in group 'pair' was not done in 1 s"));
  EXPECT_TRUE(contains(why.message(), "summed together with tensors that have longer limits"));
  EXPECT_FALSE(futureOfB_.ready());
  answer(start, std::vector<float>(20, 100));
  futureOfB_.wait(test::kPatience);
  EXPECT_EQ(b_, std::vector<float>(10, 102));
  EXPECT_EQ(*a_, std::vector<float>(10, 1)) << "its memory is the caller's again";
}

TEST_F(BatchTest, MayHaveALimitThatEndsWhenAllHaveOfferedATensor) {
  const ProcessGroup limited = group_.withTimeout(std::chrono::milliseconds(500));
  futureOfA_ = pushPull(limited, "a", std::span(*a_), {.timeoutUntilMatched = true});
  futureOfB_ = pushPull(group_, "b", std::span(b_));
  orderTogether();
  const group::Message start = nextStart();
  EXPECT_THROW(futureOfA_.wait(std::chrono::seconds(2)), TimeoutError);
  EXPECT_FALSE(futureOfA_.ready()) << "it goes on";
  answer(start, std::vector<float>(20, 100));
  futureOfA_.wait(test::kPatience);
  EXPECT_EQ(*a_, std::vector<float>(10, 101));
  // And one that nobody else offers has it.
  const Status why = failureOf(pushPull(limited, "c", std::span(*a_), {.timeoutUntilMatched = true}));
  EXPECT_EQ(why.code(), Code::kDeadlineExceeded) << why.toString();
}

TEST_F(BatchTest, GoesOnWithoutATensorThatIsCancelled) {
  offerBoth();
  orderTogether();
  const group::Message start = nextStart();  // with the data
  futureOfA_.cancel();
  EXPECT_TRUE(futureOfA_.ready());
  a_.reset();  // a sanitizer would see a write
  EXPECT_EQ(failureOf(futureOfA_).code(), Code::kCancelled);
  EXPECT_FALSE(futureOfB_.ready());
  answer(start, std::vector<float>(20, 100));
  futureOfB_.wait(test::kPatience);
  EXPECT_EQ(b_, std::vector<float>(10, 102));
}

// Until it ends, the only task that the pool runs.
class BusyPool {
 public:
  explicit BusyPool(io::Executor& executor) {
    executor.post([this] {
      runs_.open();
      mayEnd_.wait();
      ended_.open();
    });
    runs_.wait();
  }
  ~BusyPool() { end(); }
  BusyPool(const BusyPool&) = delete;
  BusyPool& operator=(const BusyPool&) = delete;

  void end() {
    mayEnd_.open();
    ended_.wait();
  }

 private:
  test::Gate runs_, mayEnd_, ended_;
};

// A large batch is copied by a task.
class BusyPoolTest : public BatchTest {
 protected:
  BusyPoolTest() {
    resize(30'000);
    offerBoth();
    orderTogether();
    nextStart();
  }

  BusyPool pool_{*job_->worker(0).executor};
};

TEST_F(BusyPoolTest, DoesNotHoldUpOtherNames) {
  Future<void> other = offer("other");
  sendOffers({{Offer{"other", floats(data_.size())}}});
  answer(nextStart(), std::vector<float>(data_.size(), 7));
  other.wait(test::kPatience);
  EXPECT_EQ(data_, std::vector<float>(data_.size(), 7));
  EXPECT_FALSE(futureOfA_.ready());
}

// The group is closed, and then the pool drops the task that was to copy.
TEST_F(BusyPoolTest, LeavesNoFutureBehind) {
  Future<void> inPlace = offer("other");
  sendOffers({{Offer{"other", floats(data_.size())}}});
  answer(nextStart(), std::vector<float>(data_.size(), 7));
  float value = 1;
  Future<void> late = pushPull(group_, "late", std::span(&value, 1));
  worker_->groups().close(cancelled("this worker leaves"));
  for (const Future<void>& one : {inPlace, late, futureOfA_, futureOfB_}) EXPECT_TRUE(one.ready());
  for (const Future<void>& one : {late, futureOfA_, futureOfB_})
    EXPECT_EQ(failureOf(one).message(), "this worker leaves");
  Future<void> later = pushPull(group_, "later", std::span(&value, 1));
  EXPECT_EQ(failureOf(later).message(), "this worker leaves");
  a_.reset();
  pool_.end();
  job_->worker(0).executor->stop();
}

// The batch has not got the data of the cancelled one, so it cannot be summed on any member.
TEST_F(BusyPoolTest, CancelledTensorsAreFreeAtOnceAndFailTheBatchLater) {
  futureOfA_.cancel();
  EXPECT_TRUE(futureOfA_.ready());
  a_.reset();
  EXPECT_EQ(failureOf(futureOfA_).code(), Code::kCancelled);
  pool_.end();
  const Status why = failureOf(futureOfB_);
  EXPECT_EQ(why.code(), Code::kCancelled) << why.toString();
  EXPECT_TRUE(
      contains(why.message(), "pushPull of 'b' in group 'pair': worker 'w0' (rank 0) cancelled pushPull of 'a'"));
  const group::Message abort = listener_.next(group::MessageKind::kAbort);
  EXPECT_EQ(abort.stream, group::Stream::kFused);
  EXPECT_EQ(abort.sequence, 0U);
  EXPECT_EQ(abort.status.code(), Code::kCancelled);
}

}  // namespace
}  // namespace treadle::push_pull_batch_test

// DistributedDataParallel::stats() says where the time of a rank goes. No test asserts that something is fast or slow:
// bounds come from events, and sums are exact.

#include <torch/csrc/autograd/engine.h>

#include <numeric>

#include "tests/support/expect_error.h"
#include "tests/support/gate.h"
#include "tests/train/ddp/hooks.h"

namespace treadle::test::stats_test {
namespace {

using namespace ddp_test;

void expectEqualTimes(const DdpTimes& actual, const DdpTimes& expected) {
  EXPECT_EQ(actual.outside, expected.outside);
  EXPECT_EQ(actual.compute, expected.compute);
  EXPECT_EQ(actual.copies, expected.copies);
  EXPECT_EQ(actual.exposed, expected.exposed);
}

DdpTimes sumOf(const std::vector<DdpStep>& steps) {
  DdpTimes sum;
  for (const DdpStep& step : steps) sum += step.times;
  return sum;
}

void passOf(DistributedDataParallel<Net>& ddp, int rank, int step, bool skip = false) {
  ddp.forward(inputOf(rank, step), skip).square().mean().backward();
}

// The sum is known from below by what has happened within, and from above by what lies around it.
TEST(DdpStats, HasPartsThatAddUpToTheTimeThatHasPassed) {
  constexpr int kSteps = 5;
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    Net net(0);
    const TimePoint before = Clock::now();
    DistributedDataParallel<Net> ddp(net, ProcessGroup::make(worker, job.names()), smallBuckets());
    const TimePoint constructed = Clock::now();
    TimePoint lastGradient{};
    net->bias.register_hook([&](const at::Tensor&) { lastGradient = Clock::now(); });
    for (int step = 0; step < kSteps; ++step) passOf(ddp, worker.self().rank, step);
    const TimePoint after = Clock::now();
    const DdpStats stats = ddp.stats();
    EXPECT_EQ(stats.averagedPasses, static_cast<uint64_t>(kSteps));
    ASSERT_EQ(stats.recent.size(), static_cast<size_t>(kSteps));
    expectEqualTimes(stats.total, sumOf(stats.recent));
    EXPECT_GE(stats.total.step(), lastGradient - constructed);
    EXPECT_LE(stats.total.step(), after - before);
    for (const DdpStep& step : stats.recent) {
      EXPECT_GT(step.times.outside, Duration::zero());
      EXPECT_GT(step.times.compute, Duration::zero());
      EXPECT_GT(step.times.copies, Duration::zero());
      EXPECT_GE(step.times.exposed, Duration::zero());
      EXPECT_LE(step.waitForLatest, step.times.exposed);
      EXPECT_GE(step.waitForLatest, Duration::zero());
    }
  });
}

// A hook of two rounds ends its buckets later than one of one round, and in the same order.
class BucketTimes : public ::testing::TestWithParam<bool> {};

class InTwoRounds final : public CommHook {
 public:
  std::string description() const override { return "InTwoRounds"; }
  Reduction reduce(Exchange& exchange, const ddp::Bucket& bucket) override {
    at::Tensor flat = bucket.flat;
    co_await exchange.round(allReduce(exchange.group(), flat, ReduceOp::kAverage));
    co_await exchange.round(allReduce(exchange.group(), flat, ReduceOp::kAverage));
  }
};

TEST_P(BucketTimes, AreThoseOfEachBucketInItsOrder) {
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    Net net(0);
    DdpOptions options = smallBuckets();
    if (GetParam()) options.hook = std::make_shared<InTwoRounds>();
    DistributedDataParallel<Net> ddp(net, ProcessGroup::make(worker, job.names()), options);
    // Rank 0 leaves a parameter out, so its bucket is ready at the end of the pass there.
    for (int step = 0; step < 3; ++step) passOf(ddp, worker.self().rank, step, /*skip=*/worker.self().rank == 0);
    const DdpStats stats = ddp.stats();
    ASSERT_EQ(stats.recent.size(), 3U);
    // In the first pass the order is the reverse one.
    const std::vector<at::Tensor> parameters = net->parameters();
    const ddp::BucketPlan plan(parameters, ddp::reverseOrder(parameters.size()), options.buckets);
    ASSERT_EQ(stats.recent.front().buckets.size(), plan.buckets().size());
    for (size_t i = 0; i < plan.buckets().size(); ++i) {
      size_t bytes = 0;
      for (const size_t index : plan.buckets()[i]) bytes += parameters[index].nbytes();
      EXPECT_EQ(stats.recent.front().buckets[i].bytes, bytes);
    }
    for (const DdpStep& step : stats.recent) {
      size_t bytes = 0;
      Duration launchedBefore{}, lastDone{};
      for (const DdpBucketTimes& bucket : step.buckets) {
        bytes += bucket.bytes;
        EXPECT_LE(Duration::zero(), bucket.ready);
        EXPECT_LE(bucket.ready, bucket.launched);
        EXPECT_LE(bucket.launched, bucket.done);
        EXPECT_LE(launchedBefore, bucket.launched);
        launchedBefore = bucket.launched;
        lastDone = std::max(lastDone, bucket.done);
      }
      size_t all = 0;
      for (const at::Tensor& parameter : parameters) all += parameter.nbytes();
      EXPECT_EQ(bytes, all);
      EXPECT_EQ(step.communication, lastDone - step.buckets.front().launched);
      EXPECT_LE(lastDone, step.times.compute + step.times.copies + step.times.exposed);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Rounds, BucketTimes, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "two" : "one"; });

// Calls `f` between the first two steps of the end of the pass: all buckets and the exact channel have gone by then.
void atTheEnd(std::function<void()> f) { torch::autograd::Engine::get_default_engine().queue_callback(std::move(f)); }

// In the second pass, rank 1 waits in its backward pass until rank 0 is at the end of its own. Rank 0 ends the first
// pass after rank 1, so that rank 1 takes longer in the second one by its own clock too.
TEST(DdpStats, ShowsWaitsForASlowRankAsExposedAndThatRankAsTheLatest) {
  TensorJob job(ranks(2));
  Gate hasRankOneEnded, isRankZeroAtTheEnd;
  TimePoint waits, goesOn;  // rank 0 waits from then on, and rank 1 goes on not before then
  std::vector<DdpStats> ofRanks(2);
  job.onAll([&](Worker& worker) {
    const int rank = worker.self().rank;
    Net net(0);
    DistributedDataParallel<Net> ddp(net, ProcessGroup::make(worker, job.names()), smallBuckets());
    int step = 0;
    net->bias.register_hook([&](const at::Tensor&) {
      if (rank == 0 && step == 0) atTheEnd([&] { hasRankOneEnded.wait(); });
      if (rank == 0 && step == 1)
        atTheEnd([&] {
          waits = Clock::now();
          isRankZeroAtTheEnd.open();
        });
      if (rank == 1 && step == 1) {
        isRankZeroAtTheEnd.wait();
        goesOn = Clock::now();
      }
    });
    passOf(ddp, rank, 0);
    if (rank == 1) hasRankOneEnded.open();
    ++step;
    passOf(ddp, rank, 1);
    ofRanks[static_cast<size_t>(rank)] = ddp.stats();
  });
  ASSERT_LT(waits, goesOn);
  for (const DdpStats& stats : ofRanks) {
    ASSERT_EQ(stats.recent.size(), 2U);
    EXPECT_EQ(stats.recent.back().latestRank, 1);
  }
  const DdpStep& waiting = ofRanks[0].recent.back();
  EXPECT_GE(waiting.times.exposed, goesOn - waits);
  EXPECT_GE(waiting.waitForLatest + std::chrono::microseconds(1), goesOn - waits);
  EXPECT_EQ(ofRanks[1].recent.back().waitForLatest, Duration::zero());
}

TEST(DdpStats, NamesTheSameLatestRanksOnAllRanks) {
  constexpr int kSteps = 7;
  TensorJob job(ranks(3));
  std::vector<DdpStats> ofRanks(3);
  job.onAll([&](Worker& worker) {
    const int rank = worker.self().rank;
    Net net(0);
    DistributedDataParallel<Net> ddp(net, ProcessGroup::make(worker, job.names()), smallBuckets());
    for (int step = 0; step < kSteps; ++step) passOf(ddp, rank, step);
    ofRanks[static_cast<size_t>(rank)] = ddp.stats();
  });
  for (size_t rank = 0; rank < ofRanks.size(); ++rank) {
    const DdpStats& stats = ofRanks[rank];
    EXPECT_EQ(stats.rank, static_cast<int>(rank));
    EXPECT_EQ(stats.members, job.names());
    EXPECT_EQ(stats.latestPasses, ofRanks[0].latestPasses);
    EXPECT_EQ(std::accumulate(stats.latestPasses.begin(), stats.latestPasses.end(), uint64_t{0}), stats.averagedPasses);
    for (size_t step = 0; step < stats.recent.size(); ++step) {
      EXPECT_EQ(stats.recent[step].latestRank, ofRanks[0].recent[step].latestRank);
      if (stats.recent[step].latestRank == stats.rank) {
        EXPECT_EQ(stats.recent[step].waitForLatest, Duration::zero());
      }
    }
  }
}

// A pass that fails, and passes under noSync, are a part of the step that follows.
TEST(DdpStats, CountsPassesByWhatBecameOfThem) {
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    const int rank = worker.self().rank;
    Net net(0);
    const TimePoint before = Clock::now();
    DistributedDataParallel<Net> ddp(net, ProcessGroup::make(worker, job.names()), smallBuckets());
    EXPECT_EQ(ddp.stats().averagedPasses, 0U);
    EXPECT_TRUE(ddp.stats().recent.empty());
    passOf(ddp, rank, 0);
    const TimePoint failedBegins = Clock::now();
    const at::Tensor input = inputOf(rank, 1).requires_grad_();
    EXPECT_THROW(net->forward(rank == 1 ? Broken::apply(input) : input, false).square().mean().backward(),
                 std::exception);
    {
      const auto unaveraged = ddp.noSync();
      passOf(ddp, rank, 2);
      passOf(ddp, rank, 3);
    }
    net->zero_grad();
    const TimePoint lastBegins = Clock::now();
    rank == 0 ? ddp.skipPass() : passOf(ddp, rank, 4);
    const DdpStats stats = ddp.stats();
    EXPECT_EQ(stats.averagedPasses, 2U);
    EXPECT_EQ(stats.skippedPasses, rank == 0 ? 1U : 0U);
    EXPECT_EQ(stats.failedPasses, 1U);
    EXPECT_EQ(stats.localPasses, 2U);
    ASSERT_EQ(stats.recent.size(), 2U);
    expectEqualTimes(stats.total, sumOf(stats.recent));
    EXPECT_LE(stats.total.step(), Clock::now() - before);
    EXPECT_GE(stats.recent.back().times.step(), lastBegins - failedBegins);
  });
}

// They are dropped on all ranks, as rank 0 has no batch for the second one.
TEST(DdpStats, CountsPassesThatJoinDropsAsFailed) {
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    const int rank = worker.self().rank;
    Net net(0);
    DistributedDataParallel<Net> ddp(net, ProcessGroup::make(worker, job.names()), smallBuckets());
    auto join = ddp.join([] {}, UnevenInputs::kStopAtFirst);
    for (int step = 0; step <= rank && !join.isOver(); ++step) {
      net->zero_grad();
      passOf(ddp, rank, step);
    }
    join.finish();
    EXPECT_EQ(ddp.stats().averagedPasses, 1U);
    EXPECT_EQ(ddp.stats().failedPasses, 1U);
  });
}

TEST(DdpStats, KeepsAHundredStepsAndAllTotals) {
  constexpr uint64_t kMore = 5;
  TensorJob job(ranks(1));
  Net net(0);
  DistributedDataParallel<Net> ddp(net, ProcessGroup::make(job[0], job.names()), smallBuckets());
  DdpTimes ofTheFirst;
  for (uint64_t step = 0; step < DdpStats::kRecentSteps + kMore; ++step) {
    passOf(ddp, 0, static_cast<int>(step));
    if (step < kMore) ofTheFirst += ddp.stats().recent.back().times;
  }
  const DdpStats stats = ddp.stats();
  EXPECT_EQ(stats.recent.size(), DdpStats::kRecentSteps);
  EXPECT_EQ(stats.averagedPasses, DdpStats::kRecentSteps + kMore);
  DdpTimes all = sumOf(stats.recent);
  all += ofTheFirst;
  expectEqualTimes(stats.total, all);
}

TEST(DdpStats, NamesParametersThatNoRankUses) {
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    const int rank = worker.self().rank;
    Net net(0);
    DistributedDataParallel<Net> ddp(net, ProcessGroup::make(worker, job.names()), smallBuckets());
    passOf(ddp, rank, 0, /*skip=*/rank == 0);
    EXPECT_TRUE(ddp.stats().unusedParameters.empty());
    net->zero_grad();
    passOf(ddp, rank, 1, /*skip=*/true);
    EXPECT_EQ(ddp.stats().unusedParameters, std::vector<std::string>{"skipped"});
    ddp.skipPass();
    EXPECT_EQ(ddp.stats().unusedParameters, std::vector<std::string>{"skipped"}) << "no rank had a batch";
  });
}

TEST(DdpStats, CountsDistributedPassesToo) {
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    Net net(0);
    DistributedDataParallel<Net> ddp(net, ProcessGroup::make(worker, job.names()), smallBuckets());
    for (int step = 0; step < 2; ++step) {
      AutogradContext context(worker);
      context.backward({ddp.forward(inputOf(worker.self().rank, step), false).square().mean()});
    }
    const DdpStats stats = ddp.stats();
    EXPECT_EQ(stats.averagedPasses, 2U);
    EXPECT_GT(stats.total.compute, Duration::zero());
  });
}

// Times that are given: 100 ms a step.
DdpStats statsWith(Duration exposed, Duration waitForLatest, const std::vector<int>& latestRanks) {
  DdpStats stats{.rank = 1, .members = ranks(3)};
  for (const int latest : latestRanks) {
    DdpStep step;
    step.times = {.outside = std::chrono::milliseconds(20), .copies = std::chrono::milliseconds(5), .exposed = exposed};
    step.times.compute = std::chrono::milliseconds(100) - step.times.step();
    step.communication = std::chrono::milliseconds(30);
    step.buckets = {{.bytes = 1234,
                     .ready = std::chrono::milliseconds(1),
                     .launched = std::chrono::milliseconds(2),
                     .done = std::chrono::milliseconds(3)}};
    step.latestRank = latest;
    step.waitForLatest = waitForLatest;
    stats.total += step.times;
    stats.recent.push_back(step);
  }
  stats.averagedPasses = latestRanks.size();
  stats.unusedParameters = {"first", "last"};
  return stats;
}

TEST(DescribedStats, ShowWhereTheTimeGoes) {
  const std::string text =
      describe(statsWith(std::chrono::milliseconds(40), std::chrono::milliseconds(10), {2, 0, 2, 2}));
  for (const char* part :
       {"on rank 1 ('rank1') of 3: the mean of 4 steps is 100 ms\n", "outside      20 ms   20%",
        "compute      35 ms   35%", "copies        5 ms    5%", "exposed      40 ms   40%",
        "communication takes 30 ms of a step", "rank 2 ('rank2') was the latest in 3 of 4 steps",
        "waited for the latest 10 ms in each", "4 averaged, 0 of them without a batch here; 0 failed; 0 under noSync()",
        "without a gradient on any rank: 'first', 'last'\n", "0         1234 bytes  ready      1 ms",
        "launched      2 ms  done      3 ms\n"})
    EXPECT_TRUE(contains(text, part));
  EXPECT_EQ(text.back(), '\n');
}

TEST(DescribedStats, SayWhatToDoAboutExposedTime) {
  const auto ms = [](int count) { return std::chrono::milliseconds(count); };
  EXPECT_TRUE(contains(describe(statsWith(ms(9), ms(9), {2})), "exposed 9% of the step: a faster exchange would gain"));
  EXPECT_TRUE(
      contains(describe(statsWith(ms(40), ms(10), {2})), "exposed 40% of the step: most of it is the exchange"));
  EXPECT_TRUE(contains(describe(statsWith(ms(40), ms(30), {2, 0, 2})), "find out why rank 2 ('rank2') is slow"));
  EXPECT_TRUE(contains(describe(statsWith(ms(40), ms(30), {2, 0, 1})), "which change from step to step"));
  EXPECT_TRUE(contains(describe(DdpStats{.members = ranks(2)}), "('rank0') of 2: no pass has been averaged yet"));
}

}  // namespace
}  // namespace treadle::test::stats_test

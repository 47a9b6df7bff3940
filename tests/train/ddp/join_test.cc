// Ranks with different numbers of batches train as one process does on the batches of those that have one, and end with
// the same bits.

#include <map>
#include <numeric>

#include "tests/support/expect_error.h"
#include "tests/train/ddp/hooks.h"
#include "tests/train/ddp/uneven.h"

namespace treadle::test::join_test {
namespace {

using namespace ddp_test;

DdpOptions with(Divisor divisor) {
  DdpOptions options = smallBuckets();
  options.divisor = divisor;
  return options;
}

void expectTrainsAsOneProcess(TensorJob& job, const Counts& counts, const DdpOptions& options) {
  std::vector<std::vector<at::Tensor>> ofRanks(counts.size());
  job.onAll([&](Worker& worker) {
    const auto rank = static_cast<size_t>(worker.self().rank);
    Trained trained(ProcessGroup::make(worker, job.names()), options);
    auto join = trained.join();
    for (int batch = 0; batch < counts[rank]; ++batch) {
      trained.train(batch);
      EXPECT_FALSE(join.isOver());
    }
    join.finish();
    EXPECT_TRUE(join.isOver());
    EXPECT_EQ(trained.steps, mostOf(counts));
    EXPECT_FALSE(trained.hasGradients());
    EXPECT_EQ(trained.ddp.pendingPasses(), 0U);
    trained.ddp.verifyReplicas();
    ofRanks[rank] = trained.state();
  });
  expectTrainedAs(trainedAlone(counts, options.divisor, mostOf(counts)), ofRanks);
}

class JoinWith : public ::testing::TestWithParam<Divisor> {};

TEST_P(JoinWith, TrainsAsOneProcessOnTheBatchesThatThereAre) {
  TensorJob job(ranks(4));
  for (const Counts& counts : {Counts{5, 3, 0, 4}, Counts{0, 3, 5, 4}, Counts{2, 2, 2, 2}, Counts{0, 0, 0, 2}}) {
    SCOPED_TRACE(::testing::PrintToString(counts));
    expectTrainsAsOneProcess(job, counts, with(GetParam()));
  }
}

INSTANTIATE_TEST_SUITE_P(Divisors, JoinWith,
                         ::testing::Values(Divisor::kWorldSize, Divisor::kActiveRanks, Divisor::kSum,
                                           Divisor::kWeights),
                         [](const auto& info) { return ddp::nameOf(info.param); });

TEST(Join, TrainsAsOneProcessWhicheverRankEndsFirst) {
  TensorJob job(ranks(4));
  Counts counts = {0, 3, 4, 5};
  do {
    SCOPED_TRACE(::testing::PrintToString(counts));
    expectTrainsAsOneProcess(job, counts, with(Divisor::kActiveRanks));
  } while (std::next_permutation(counts.begin(), counts.end()));
}

TEST(Join, EndsWhereNoRankHasABatch) {
  for (const int size : {1, 3}) {
    TensorJob job(ranks(size));
    expectTrainsAsOneProcess(job, Counts(static_cast<size_t>(size), 0), with(Divisor::kWeights));
  }
}

// Rank 0 has no batch at all, and no rank uses `skipped` in the first pass.
TEST(Join, LearnsWhichParametersAreUsedFromThePassesOfOtherRanks) {
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    DdpOptions options = with(Divisor::kActiveRanks);
    options.unusedParameters = UnusedParameters::kStatic;
    Trained trained(ProcessGroup::make(worker, job.names()), options);
    auto join = trained.join();
    if (trained.rank == 1) {
      const auto lossOf = [&](bool skip) { return trained.net->forward(inputOf(1, 0), skip).square().sum(); };
      lossOf(/*skip=*/true).backward();
      trained.step();
      trained.optimizer.zero_grad();
      EXPECT_TRUE(contains(messageOf<StateError>([&] { lossOf(/*skip=*/false).backward(); }), "'skipped'"));
      trained.optimizer.zero_grad();
      lossOf(/*skip=*/true).backward();
      trained.step();
    } else {
      EXPECT_TRUE(contains(messageOf<StateError>([&] { join.finish(); }), "'skipped'"));
    }
    join.finish();
    EXPECT_EQ(trained.steps, 2);
    trained.ddp.verifyReplicas();
  });
}

// One exchange for two batches. The last batch of a rank may be without its exchange: its gradients go in the rank's
// first pass without a batch.
TEST(Join, SendsWhatPassesUnderNoSyncHaveLeft) {
  constexpr int kPerStep = 2;
  TensorJob job(ranks(3));
  for (const Divisor divisor : {Divisor::kWorldSize, Divisor::kActiveRanks, Divisor::kWeights})
    for (const Counts& counts : {Counts{5, 2, 0}, Counts{3, 6, 0}, Counts{1, 1, 1}}) {
      SCOPED_TRACE(std::string(ddp::nameOf(divisor)) + ::testing::PrintToString(counts));
      const int steps = (mostOf(counts) + 1) / kPerStep;
      std::vector<std::vector<at::Tensor>> ofRanks(counts.size());
      job.onAll([&](Worker& worker) {
        const auto rank = static_cast<size_t>(worker.self().rank);
        Trained trained(ProcessGroup::make(worker, job.names()), with(divisor));
        auto join = trained.join();
        for (int batch = 0; batch < counts[rank]; ++batch) {
          const bool isLast = batch % kPerStep == kPerStep - 1;
          if (isLast) {
            trained.backward(batch);
            trained.step();
            continue;
          }
          trained.optimizer.zero_grad();
          auto unaveraged = trained.ddp.noSync();
          trained.backward(batch);
        }
        join.finish();
        EXPECT_EQ(trained.steps, steps);
        ofRanks[rank] = trained.state();
      });
      expectTrainedAs(trainedAlone(counts, divisor, steps, kPerStep), ofRanks);
    }
}

// A rank that has batches, but none for this step.
TEST(Join, GoesOnAfterAPassThatTheLastRankSkips) {
  const Counts counts = {0, 2};
  TensorJob job(ranks(2));
  std::vector<std::vector<at::Tensor>> ofRanks(2);
  job.onAll([&](Worker& worker) {
    const int rank = worker.self().rank;
    Trained trained(ProcessGroup::make(worker, job.names()), with(Divisor::kActiveRanks));
    auto join = trained.join();
    if (rank == 1) {
      trained.train(0);
      trained.optimizer.zero_grad();
      trained.ddp.skipPass();
      trained.step();
      trained.train(1);
    }
    join.finish();
    EXPECT_EQ(trained.steps, 3);
    ofRanks[static_cast<size_t>(rank)] = trained.state();
  });
  expectTrainedAs(trainedAlone(counts, Divisor::kActiveRanks, 2), ofRanks);
}

TEST(Join, MayBeUsedInEachEpoch) {
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    const int rank = worker.self().rank;
    Trained trained(ProcessGroup::make(worker, job.names()), with(Divisor::kActiveRanks));
    for (int epoch = 0; epoch < 3; ++epoch) {
      auto join = trained.join();
      for (int batch = 0; batch < 1 + (rank + epoch) % 2; ++batch) trained.train(batch);
      join.finish();
      join.finish();  // of a guard that is over: returns at once
      trained.train(7);
      EXPECT_EQ(trained.steps, 3 * (epoch + 1));
      trained.ddp.verifyReplicas();
    }
  });
}

// Its buffer adds up numbers that it is given.
struct AdderImpl : torch::nn::Module {
  AdderImpl() {
    weight = register_parameter("weight", at::ones({2}, at::kDouble));
    sum = register_buffer("sum", at::zeros({}, at::kDouble));
  }
  at::Tensor forward(double number) {
    sum.add_(number);
    return weight.sum();
  }
  at::Tensor weight, sum;
};
TORCH_MODULE(Adder);

struct BufferCase {
  Buffers buffers;
  Divisor divisor;
};

double numberOf(size_t rank, int step) { return 1 + static_cast<double>(rank) + 10 * step; }

// What all ranks hold in the end.
double simulatedSum(const Counts& counts, const BufferCase& one) {
  double sum = 0;
  for (int step = 0; step < mostOf(counts); ++step) {
    std::vector<double> active;
    for (size_t rank = 0; rank < counts.size(); ++rank)
      if (counts[rank] > step) active.push_back(sum + numberOf(rank, step));
    const double total = std::accumulate(active.begin(), active.end(), 0.0);
    const auto idle = static_cast<double>(counts.size() - active.size());
    if (one.buffers == Buffers::kFromRank0) {
      sum = active.front();
    } else if (one.divisor == Divisor::kWorldSize) {
      sum = (total + idle * sum) / static_cast<double>(counts.size());
    } else {
      sum = total / static_cast<double>(active.size());
    }
  }
  return sum;
}

TEST(Join, TakesBuffersFromRanksThatHaveABatch) {
  TensorJob job(ranks(3));
  for (const BufferCase& one :
       {BufferCase{Buffers::kFromRank0, Divisor::kWorldSize}, BufferCase{Buffers::kAverage, Divisor::kActiveRanks},
        BufferCase{Buffers::kAverage, Divisor::kWorldSize}})
    for (const Counts& counts : {Counts{1, 4, 2}, Counts{0, 0, 2}, Counts{3, 1, 1}})
      job.onAll([&](Worker& worker) {
        const auto rank = static_cast<size_t>(worker.self().rank);
        Adder net;
        DdpOptions options = with(one.divisor);
        options.buffers = one.buffers;
        DistributedDataParallel<Adder> ddp(net, ProcessGroup::make(worker, job.names()), options);
        auto join = ddp.join([] {});
        for (int step = 0; step < counts[rank]; ++step) {
          net->zero_grad();
          ddp.forward(numberOf(rank, step)).backward();
        }
        join.finish();
        EXPECT_NEAR(net->sum.item<double>(), simulatedSum(counts, one), 1e-12) << ::testing::PrintToString(counts);
        ddp.verifyReplicas();
      });
}

std::map<std::string, at::Tensor> errorsOf(const ErrorFeedbackHook& hook) {
  std::map<std::string, at::Tensor> errors;
  for (const auto& [name, tensor] : hook.state())
    if (name.find(".error.") != std::string::npos) errors[name] = tensor;
  return errors;
}

class JoinWithErrorMemory : public ::testing::TestWithParam<bool> {
 protected:
  static std::shared_ptr<ErrorFeedbackHook> makeHook() {
    if (GetParam()) return std::make_shared<TopKHook>(TopKOptions{.ratio = 0.05});
    return std::make_shared<PowerSgdHook>(PowerSgdOptions{.rank = 1, .startAfter = 0});
  }
};

// No step is made, so gradients are given: what has been sent in all passes, and what is held back, is what ranks had.
TEST_P(JoinWithErrorMemory, HoldsBackWhatTheRankHeldBackAtItsLastBatch) {
  const Shapes shapes = {{12, 10}};
  const Counts counts = {2, 5, 0};
  const auto gradientOf = [&](size_t rank, int step) {
    return random(shapes[0], 100 * rank + static_cast<size_t>(step));
  };
  at::Tensor had = at::zeros(shapes[0], at::kDouble);
  for (size_t rank = 0; rank < counts.size(); ++rank)
    for (int step = 0; step < counts[rank]; ++step) had += gradientOf(rank, step);
  TensorJob job(ranks(3));
  std::vector<at::Tensor> sent(counts.size()), heldBack(counts.size());
  job.onAll([&](Worker& worker) {
    const auto rank = static_cast<size_t>(worker.self().rank);
    Weights net(shapes, at::kDouble);
    const auto hook = makeHook();
    DdpOptions options = with(Divisor::kSum);
    options.hook = hook;
    DistributedDataParallel<Weights> ddp(net, ProcessGroup::make(worker, job.names()), options);
    sent[rank] = at::zeros(shapes[0], at::kDouble);
    const auto add = [&] { sent[rank] += net->all[0].grad(); };
    auto join = ddp.join(add);
    for (int step = 0; step < counts[rank]; ++step) {
      net->zero_grad();
      net->loss({gradientOf(rank, step)}).backward();
      add();
    }
    const auto before = errorsOf(*hook);
    EXPECT_EQ(before.size(), counts[rank] > 0 ? 1U : 0U);
    join.finish();
    const auto after = errorsOf(*hook);
    ASSERT_EQ(after.size(), before.size());
    heldBack[rank] = at::zeros(shapes[0], at::kDouble);
    for (const auto& [name, error] : after) {
      EXPECT_TRUE(haveEqualBits(error, before.at(name))) << name;
      EXPECT_GT(error.abs().max().item<double>(), 0.1) << "nothing was held back";
      heldBack[rank] += error;
    }
  });
  for (const at::Tensor& one : sent) EXPECT_TRUE(haveEqualBits(one, sent.front()));
  EXPECT_TRUE(close(sent[0] + heldBack[0] + heldBack[1] + heldBack[2], had));
}

TEST_P(JoinWithErrorMemory, LeavesAllRanksWithTheSameBits) {
  const Counts counts = {1, 4, 0};
  TensorJob job(ranks(3));
  std::vector<std::vector<at::Tensor>> ofRanks(counts.size());
  job.onAll([&](Worker& worker) {
    const auto rank = static_cast<size_t>(worker.self().rank);
    DdpOptions options = with(Divisor::kActiveRanks);
    options.hook = makeHook();
    Trained trained(ProcessGroup::make(worker, job.names()), options);
    auto join = trained.join();
    for (int batch = 0; batch < counts[rank]; ++batch) trained.train(batch);
    join.finish();
    ofRanks[rank] = trained.state();
  });
  for (const auto& one : ofRanks) expectEqualBits(one, ofRanks.front());
}

INSTANTIATE_TEST_SUITE_P(Hooks, JoinWithErrorMemory, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "TopK" : "PowerSgd"; });

}  // namespace
}  // namespace treadle::test::join_test

// The sum of the ranks' gradients is divided as the divisor says: training with weights equals one process on all
// samples, whatever their numbers.

#include <torch/optim/sgd.h>

#include <limits>

#include "tests/support/expect_error.h"
#include "tests/support/seeds.h"
#include "tests/train/ddp/net.h"

namespace treadle::test::divisor_test {
namespace {

using namespace ddp_test;

DdpOptions with(Divisor divisor) { return {.buckets = {.firstBytes = 64, .bytes = 300}, .divisor = divisor}; }

at::Tensor samples(int64_t count, int rank, int step) {
  return random({count, 5}, static_cast<uint64_t>(7000 + 100 * step + rank));
}

torch::optim::SGDOptions sgd() { return torch::optim::SGDOptions(0.01).momentum(0.9).weight_decay(0.1); }

void expectGradients(const Net& actual, const Net& expected) {
  for (const auto& entry : expected->named_parameters())
    EXPECT_TRUE(close(actual->named_parameters()[entry.key()].grad(), entry.value().grad(), 1e-12)) << entry.key();
}

// Random numbers of samples for each rank and pass, of which a step has one to three; only the last is averaged.
struct Schedule {
  static constexpr int kSteps = 5;
  std::vector<int> passes;                                // by step
  std::vector<std::vector<std::vector<int64_t>>> counts;  // by step, pass and rank; some are 0

  Schedule(Random& random, int size) {
    for (int step = 0; step < kSteps; ++step) {
      passes.push_back(1 + static_cast<int>(pick(random, 3)));
      auto& ofPasses = counts.emplace_back();
      for (int pass = 0; pass < passes.back(); ++pass) {
        auto& ofRanks = ofPasses.emplace_back();
        for (int rank = 0; rank < size; ++rank)
          ofRanks.push_back(static_cast<int64_t>(pick(random, 4) * pick(random, 3)));
      }
      counts.back().back().front() += 1;  // not all are 0
    }
  }
  at::Tensor inputOf(int rank, int step, int pass) const {
    return samples(counts[static_cast<size_t>(step)][static_cast<size_t>(pass)][static_cast<size_t>(rank)], rank,
                   3 * step + pass);
  }
  int passesOf(int step) const { return passes[static_cast<size_t>(step)]; }
};

at::Tensor sumOfSquares(const at::Tensor& output) { return output.square().sum(); }

// The gradients and parameters of one process on the samples of all ranks.
void trainAlone(Net& net, const Schedule& schedule, int size, std::vector<std::vector<at::Tensor>>& gradients) {
  torch::optim::SGD optimizer(net->parameters(), sgd());
  for (int step = 0; step < Schedule::kSteps; ++step) {
    std::vector<at::Tensor> all;
    for (int pass = 0; pass < schedule.passesOf(step); ++pass)
      for (int rank = 0; rank < size; ++rank) all.push_back(schedule.inputOf(rank, step, pass));
    const at::Tensor joined = at::cat(all);
    optimizer.zero_grad();
    sumOfSquares(net->forward(joined, false)).div(joined.size(0)).backward();
    auto& ofStep = gradients.emplace_back();
    for (const at::Tensor& parameter : net->parameters()) ofStep.push_back(parameter.grad().clone());
    optimizer.step();
  }
}

TEST(Weights, OfRandomCountsGiveTheGradientsOfOneProcess) {
  for (const int size : {1, 2, 3, 5}) {
    TensorJob job(ranks(size));
    Random random(seedOfRun() + static_cast<uint32_t>(size));
    const Schedule schedule(random, size);
    Net alone(0);
    std::vector<std::vector<at::Tensor>> expected;
    trainAlone(alone, schedule, size, expected);
    job.onAll([&](Worker& worker) {
      const int rank = worker.self().rank;
      Net net(0);
      DistributedDataParallel<Net> ddp(net, ProcessGroup::make(worker, job.names()), with(Divisor::kWeights));
      torch::optim::SGD optimizer(net->parameters(), sgd());
      auto backward = [&](int step, int pass) {
        const at::Tensor input = schedule.inputOf(rank, step, pass);
        ddp.setWeight(static_cast<double>(input.size(0)));
        sumOfSquares(ddp.forward(input, false)).backward();
      };
      for (int step = 0; step < Schedule::kSteps; ++step) {
        optimizer.zero_grad();
        {
          auto unaveraged = ddp.noSync();
          for (int pass = 0; pass < schedule.passesOf(step) - 1; ++pass) backward(step, pass);
        }
        backward(step, schedule.passesOf(step) - 1);
        const std::vector<at::Tensor> parameters = net->parameters();
        for (size_t i = 0; i < parameters.size(); ++i)
          EXPECT_TRUE(close(parameters[i].grad(), expected[static_cast<size_t>(step)][i], 1e-12))
              << i << " in " << step;
        optimizer.step();
      }
      for (const auto& entry : alone->named_parameters())
        EXPECT_TRUE(close(net->named_parameters()[entry.key()], entry.value())) << entry.key();
      ddp.verifyReplicas();
    });
  }
}

TEST(Weights, CountInADistributedPassToo) {
  TensorJob job(ranks(2));
  Net alone(0);
  sumOfSquares(alone->forward(at::cat({samples(2, 0, 0), samples(5, 1, 0), samples(4, 0, 1)}), false))
      .div(11)
      .backward();
  job.onAll([&](Worker& worker) {
    const int rank = worker.self().rank;
    Net net(0);
    DistributedDataParallel<Net> ddp(net, ProcessGroup::make(worker, job.names()), with(Divisor::kWeights));
    AutogradContext context(worker);
    auto pass = [&](int64_t count, int step) {
      ddp.setWeight(static_cast<double>(count));
      context.backward({sumOfSquares(ddp.forward(samples(count, rank, step), false))});
    };
    {
      auto unaveraged = ddp.noSync();
      pass(rank == 0 ? 2 : 5, 0);
    }
    pass(rank == 0 ? 4 : 0, 1);
    for (const auto& entry : alone->named_parameters()) {
      const at::Tensor parameter = net->named_parameters()[entry.key()];
      EXPECT_TRUE(close(context.gradient(parameter), entry.value().grad(), 1e-12)) << entry.key();
    }
  });
}

// Weights of passes whose gradients were dropped would spoil the next average.
TEST(Weights, OfPassesWhoseGradientsWereClearedDoNotCount) {
  TensorJob job(ranks(2));
  Net alone(0);
  sumOfSquares(alone->forward(at::cat({samples(2, 0, 1), samples(3, 1, 1)}), false)).div(5).backward();
  job.onAll([&](Worker& worker) {
    const int rank = worker.self().rank;
    Net net(0);
    DistributedDataParallel<Net> ddp(net, ProcessGroup::make(worker, job.names()), with(Divisor::kWeights));
    auto pass = [&](int64_t count, int step, bool fails) {
      ddp.setWeight(static_cast<double>(count));
      const at::Tensor input = samples(count, rank, step).requires_grad_();
      sumOfSquares(ddp.forward(fails ? Broken::apply(input) : input, false)).backward();
    };
    EXPECT_THROW(pass(100, 0, rank == 0), std::exception);
    if (rank == 1) {
      auto unaveraged = ddp.noSync();
      pass(50, 0, false);
    }
    net->zero_grad();
    pass(2 + rank, 1, false);
    expectGradients(net, alone);
  });
}

TEST(Weights, AreNeededForEachPassAndChecked) {
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    const int rank = worker.self().rank;
    ProcessGroup group = ProcessGroup::make(worker, job.names());
    Net net(0);
    DistributedDataParallel<Net> ddp(net, group, with(Divisor::kWeights));
    for (const double wrong : {-1.0, std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()})
      EXPECT_THROW(ddp.setWeight(wrong), ArgumentError);
    auto pass = [&] { sumOfSquares(ddp.forward(inputOf(rank, 0), false)).backward(); };
    if (rank == 1) ddp.setWeight(1);
    if (rank == 0) {
      EXPECT_TRUE(contains(messageOf<StateError>(pass), "setWeight was not called for this pass"));
    } else {
      EXPECT_EQ(statusOf<CancelledError>(pass).worker(), "rank0");
    }
    net->zero_grad();
    ddp.setWeight(0);
    EXPECT_TRUE(contains(messageOf<StateError>(pass), "all weights are 0"));
    {
      auto unaveraged = ddp.noSync();
      EXPECT_THROW(pass(), StateError);
    }
    DistributedDataParallel<Net> mean(Net(0), group, smallBuckets());
    EXPECT_THROW(mean.setWeight(1), StateError);
  });
}

TEST(Divisors, SumOrDivideByTheRanksThatHadABatch) {
  TensorJob job(ranks(3));
  for (const Divisor divisor : {Divisor::kWorldSize, Divisor::kActiveRanks, Divisor::kSum})
    for (const int batches : {3, 2}) {
      Net alone(0);
      for (int rank = 0; rank < batches; ++rank) {
        const double by = divisor == Divisor::kSum ? 1 : divisor == Divisor::kWorldSize ? 3 : batches;
        sumOfSquares(alone->forward(inputOf(rank, 0), false)).div(by).backward();
      }
      job.onAll([&](Worker& worker) {
        const int rank = worker.self().rank;
        Net net(0);
        DistributedDataParallel<Net> ddp(net, ProcessGroup::make(worker, job.names()), with(divisor));
        for (int again = 0; again < 2; ++again) {
          net->zero_grad();
          if (rank < batches) {
            sumOfSquares(ddp.forward(inputOf(rank, 0), false)).backward();
          } else {
            ddp.synchronize();  // no batch
          }
          expectGradients(net, alone);
        }
      });
    }
}

// A rank whose last batch was under noSync has had one.
TEST(Divisors, CountARankWhoseBatchWasNotAveragedYet) {
  TensorJob job(ranks(2));
  Net alone(0);
  for (int rank = 0; rank < 2; ++rank) sumOfSquares(alone->forward(inputOf(rank, 0), false)).div(2).backward();
  job.onAll([&](Worker& worker) {
    const int rank = worker.self().rank;
    Net net(0);
    DistributedDataParallel<Net> ddp(net, ProcessGroup::make(worker, job.names()), with(Divisor::kActiveRanks));
    if (rank == 1) {
      auto unaveraged = ddp.noSync();
      sumOfSquares(ddp.forward(inputOf(rank, 0), false)).backward();
    } else {
      sumOfSquares(ddp.forward(inputOf(rank, 0), false)).backward();
    }
    if (rank == 1) ddp.synchronize();
    expectGradients(net, alone);
  });
}

class NotCleared : public ::testing::TestWithParam<Divisor> {};

// They would be summed again.
TEST_P(NotCleared, AveragesAreRefusedByTheNextPass) {
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    const int rank = worker.self().rank;
    Net net(0);
    DistributedDataParallel<Net> ddp(net, ProcessGroup::make(worker, job.names()), with(GetParam()));
    auto loss = [&](int step) {
      if (GetParam() == Divisor::kWeights) ddp.setWeight(1);
      return sumOfSquares(ddp.forward(inputOf(rank, step), false));
    };
    const std::string why = "gradients are there that no pass since the last average has made";
    loss(0).backward();
    {
      auto unaveraged = ddp.noSync();
      loss(1).backward();
    }
    EXPECT_TRUE(contains(messageOf<StateError>([&] { loss(2).backward(); }), why));
    net->zero_grad();
    loss(3).backward();
    AutogradContext context(worker);
    context.backward({loss(4)});
    EXPECT_TRUE(contains(messageOf<StateError>([&] { context.backward({loss(5)}); }), why));
    AutogradContext another(worker);
    another.backward({loss(6)});
  });
}

INSTANTIATE_TEST_SUITE_P(Divisors, NotCleared,
                         ::testing::Values(Divisor::kActiveRanks, Divisor::kSum, Divisor::kWeights),
                         [](const auto& info) { return ddp::nameOf(info.param); });

}  // namespace
}  // namespace treadle::test::divisor_test

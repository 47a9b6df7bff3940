// Ranks that train by their own gradients and average parameters now and then follow simulated ranks, step by step.

#include <ATen/ops/embedding.h>

#include "tests/support/gate.h"
#include "tests/train/ddp/hooks.h"
#include "tests/train/ddp/local_ranks.h"
#include "tests/train/ddp/optimizers.h"

namespace treadle::test::local_sgd_test {
namespace {

using namespace ddp_test;

struct Case {
  int size;
  int64_t period, startAfter;
  bool averagesState;
};

// In some steps a rank has no gradient for `skipped`, or none has.
class LocalSgdOf : public ::testing::TestWithParam<Case> {};

TEST_P(LocalSgdOf, FollowsSimulatedRanks) {
  constexpr int kSteps = 9;
  const Case& one = GetParam();
  TensorJob job(ranks(one.size));
  job.onAll([&](Worker& worker) {
    const auto rank = static_cast<size_t>(worker.self().rank);
    const Ranks all = allOf(static_cast<size_t>(one.size));
    LocalRank actual(ProcessGroup::make(worker, job.names()), {.period = one.period, .startAfter = one.startAfter});
    if (one.averagesState) actual.local.averageState(actual.optimizer);
    SimulatedRanks expected(all.size(), one.averagesState);
    for (int step = 1; step <= kSteps; ++step) {
      actual.train(step);
      expected.backward(all, step);
      if (step <= one.startAfter) expected.averageGradients(all);
      expected.step(all);
      const bool isMean = step > one.startAfter && (step - one.startAfter) % one.period == 0;
      if (isMean) expected.averageParameters(all);
      expected.expectOn(rank, actual);
      EXPECT_EQ(actual.local.steps(), step);
      if (isMean || step <= one.startAfter) actual.ddp.verifyReplicas();
    }
    actual.local.finish();
    if ((kSteps - one.startAfter) % one.period != 0) expected.averageParameters(all);
    expected.expectOn(rank, actual);
    actual.ddp.verifyReplicas();
  });
}

INSTANTIATE_TEST_SUITE_P(Cases, LocalSgdOf,
                         ::testing::Values(Case{1, 2, 0, true}, Case{2, 1, 0, false}, Case{2, 4, 3, false},
                                           Case{3, 2, 2, true}, Case{3, 3, 0, false}, Case{5, 4, 1, true}),
                         [](const auto& info) {
                           const Case& one = info.param;
                           return std::to_string(one.size) + "RanksEach" + std::to_string(one.period) + "After" +
                                  std::to_string(one.startAfter) + (one.averagesState ? "WithState" : "");
                         });

// Steps are linear in gradients and momentum, so the mean of the steps is the step by the mean.
TEST(LocalSgd, OfPeriodOneWithMomentumIsAveragingOfGradients) {
  TensorJob job(ranks(3));
  job.onAll([&](Worker& worker) {
    const int rank = worker.self().rank;
    LocalRank actual(ProcessGroup::make(worker, job.names()), {.period = 1, .startAfter = 0});
    actual.local.averageState(actual.optimizer);
    Trained averaged(ProcessGroup::make(worker, job.names()), smallBuckets());
    const auto train = [&](Net& net, torch::optim::SGD& optimizer, int step) {
      optimizer.zero_grad();
      net->forward(inputOf(rank, step), /*skip=*/false).square().sum().backward();
      optimizer.step();
    };
    for (int step = 0; step < 5; ++step) {
      train(actual.net, actual.optimizer, step);
      actual.local.step();
      train(averaged.net, averaged.optimizer, step);
      const std::vector<at::Tensor> state = actual.state(), expected = averaged.state();
      for (size_t i = 0; i < state.size(); ++i) EXPECT_TRUE(close(state[i], expected[i], 1e-12)) << "tensor " << i;
    }
    actual.local.finish();
  });
}

// Rank 1 begins to train when rank 0 has ended its period but for the last step.
TEST(LocalSgd, SendsNothingBetweenTheMeans) {
  TensorJob job(ranks(2));
  Gate hasTrained;
  job.onAll([&](Worker& worker) {
    LocalRank actual(ProcessGroup::make(worker, job.names()), {.period = 3, .startAfter = 0});
    if (actual.rank == 1) hasTrained.wait();
    actual.train(0);
    actual.train(1);
    if (actual.rank == 0) hasTrained.open();
    actual.train(2);
    actual.ddp.verifyReplicas();
    actual.local.finish();
  });
}

// As where a GradScaler skips the step of a rank: the mean is due at the same step on all ranks.
TEST(LocalSgd, CountsStepsThatARankSkips) {
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    const auto rank = static_cast<size_t>(worker.self().rank);
    LocalRank actual(ProcessGroup::make(worker, job.names()), {.period = 2, .startAfter = 0});
    SimulatedRanks expected(2);
    for (int step = 0; step < 4; ++step) {
      const size_t skips = step == 1 ? 1 : 2;
      actual.backward(step);
      if (rank != skips) actual.optimizer.step();
      actual.local.step();
      expected.backward({0, 1}, step);
      expected.step(skips == 1 ? Ranks{0} : Ranks{0, 1});
      if (step % 2 == 1) expected.averageParameters({0, 1});
      expected.expectOn(rank, actual);
    }
    actual.local.finish();
  });
}

TEST(LocalSgd, AveragesWheneverItIsAskedTo) {
  TensorJob job(ranks(3));
  job.onAll([&](Worker& worker) {
    const auto rank = static_cast<size_t>(worker.self().rank);
    LocalRank actual(ProcessGroup::make(worker, job.names()), {.period = 4, .startAfter = 1});
    SimulatedRanks expected(3);
    const Ranks all = allOf(3);
    actual.local.average();
    for (int step = 1; step <= 6; ++step) {
      actual.train(step);
      expected.backward(all, step);
      if (step == 1) expected.averageGradients(all);
      expected.step(all);
      if (step == 3 || step == 5) expected.averageParameters(all);
      if (step == 3) actual.local.average();
      expected.expectOn(rank, actual);
    }
    actual.local.finish();
  });
}

// Several small batches for each step. Those of the first steps have one exchange.
TEST(LocalSgd, AccumulatesGradientsUnderNoSync) {
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    const auto rank = static_cast<size_t>(worker.self().rank);
    LocalRank actual(ProcessGroup::make(worker, job.names()), {.period = 2, .startAfter = 2});
    SimulatedRanks expected(2);
    for (int step = 1; step <= 6; ++step) {
      {
        auto unaveraged = actual.ddp.noSync();
        actual.backward(2 * step);
      }
      lossOfBatch(*actual.net, actual.rank, 2 * step + 1).backward();
      actual.optimizer.step();
      actual.local.step();
      expected.backward({0, 1}, 2 * step);
      expected.addBackward({0, 1}, 2 * step + 1);
      if (step <= 2) expected.averageGradients({0, 1});
      expected.step({0, 1});
      if (step == 4 || step == 6) expected.averageParameters({0, 1});
      expected.expectOn(rank, actual);
    }
    actual.local.finish();
  });
}

// Gradients of distributed passes are in a context, whose optimizer steps.
TEST(LocalSgd, LeavesDistributedPassesAlone) {
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    const auto rank = static_cast<size_t>(worker.self().rank);
    LocalRank actual(ProcessGroup::make(worker, job.names()), {.period = 2, .startAfter = 0});
    SimulatedRanks expected(2);
    for (int step = 0; step < 2; ++step) {
      actual.optimizer.zero_grad();
      AutogradContext context(worker);
      context.backward({lossOfBatch(*actual.net, actual.rank, step)});
      for (at::Tensor& parameter : actual.net->parameters()) parameter.mutable_grad() = context.gradient(parameter);
      actual.optimizer.step();
      actual.local.step();
      expected.backward({0, 1}, step);
      expected.step({0, 1});
    }
    expected.averageParameters({0, 1});
    expected.expectOn(rank, actual);
    actual.local.finish();
  });
}

// Its buffer adds up numbers that it is given.
struct TallyImpl : torch::nn::Module {
  TallyImpl() {
    weight = register_parameter("weight", at::ones({2}, at::kDouble));
    sum = register_buffer("sum", at::zeros({}, at::kDouble));
  }
  at::Tensor forward(double number) {
    sum.add_(number);
    return weight.sum();
  }
  at::Tensor weight, sum;
};
TORCH_MODULE(Tally);

TEST(LocalSgd, MakesBuffersEqualWithTheParameters) {
  TensorJob job(ranks(3));
  for (const Buffers buffers : {Buffers::kOnce, Buffers::kFromRank0, Buffers::kAverage})
    job.onAll([&](Worker& worker) {
      const int rank = worker.self().rank;
      Tally net;
      DistributedDataParallel<Tally> ddp(net, ProcessGroup::make(worker, job.names()), {.buffers = buffers});
      auto local = ddp.localSgd({.period = 2, .startAfter = 0});
      double own = 0, common = 0;
      for (int step = 1; step <= 4; ++step) {
        ddp.forward(rank + 1).backward();
        local.step();
        own += rank + 1;
        if (step % 2 == 0 && buffers != Buffers::kOnce) {
          common += buffers == Buffers::kAverage ? 2 * 2 : 2 * 1;  // the mean of 1, 2, 3, or rank 0's
          own = common;
        }
        EXPECT_NEAR(net->sum.item<double>(), own, 1e-12) << ddp::nameOf(buffers);
      }
      local.finish();
    });
}

// ---- what optimizers keep

template <class Optimizer>
class StateOfLocalSgd : public ::testing::Test {};
TYPED_TEST_SUITE(StateOfLocalSgd, AllOptimizers);

// Rank 0 has no gradient for `skipped` but in its last step, and rank 1 has none.
template <class Optimizer>
std::vector<at::Tensor> trainedFields(Worker& worker, bool averages) {
  const int rank = worker.self().rank;
  Net net(0);
  DistributedDataParallel<Net> ddp(net, ProcessGroup::make(worker, ranks(3)), smallBuckets());
  Optimizer optimizer(net->parameters(), OptimizerWith<Optimizer>::options());
  auto local = ddp.localSgd({.period = 100, .startAfter = 0});
  local.averageState(optimizer);
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    net->forward(inputOf(rank, step), rank == 1 || (rank == 0 && step < 2)).square().mean().backward();
    optimizer.step();
    local.step();
  }
  if (averages) local.average();
  std::vector<at::Tensor> fields = fieldsOf(optimizer, net->parameters());
  local.finish();
  return fields;
}

TYPED_TEST(StateOfLocalSgd, IsTheMeanOfTheTensorsAndTheLargestOfTheNumbers) {
  TensorJob job(ranks(3));
  std::vector<std::vector<at::Tensor>> own(3), averaged(3);
  for (const bool averages : {false, true})
    job.onAll([&](Worker& worker) {
      auto& of = (averages ? averaged : own)[static_cast<size_t>(worker.self().rank)];
      of = trainedFields<TypeParam>(worker, averages);
    });
  size_t kept = 0;
  for (size_t i = 0; i < own[0].size(); ++i) {
    at::Tensor expected;
    for (const auto& fields : own) {
      if (!fields[i].defined()) continue;
      if (fields[i].scalar_type() == at::kLong) {
        expected = expected.defined() ? at::maximum(expected, fields[i]) : fields[i];
      } else {
        expected = expected.defined() ? expected + fields[i] / 3 : fields[i] / 3;
      }
    }
    for (const auto& fields : averaged) {
      ASSERT_EQ(fields[i].defined(), expected.defined()) << "field " << i;
      if (!expected.defined()) continue;
      EXPECT_TRUE(close(fields[i], expected, 1e-12)) << "field " << i;
      EXPECT_TRUE(haveEqualBits(fields[i], averaged[0][i])) << "field " << i;
      ++kept;
    }
  }
  EXPECT_GE(kept, 12U) << "each parameter has a state on each rank";
}

// libtorch's SGD begins with a momentum as sparse as the gradient.
TEST(LocalSgd, AveragesSparseMomentum) {
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    const int rank = worker.self().rank;
    Weights net(Shapes{{4, 2}}, at::kDouble);
    const at::Tensor weight = net->all[0];
    DistributedDataParallel<Weights> ddp(net, ProcessGroup::make(worker, job.names()));
    torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(1).momentum(0.5));
    auto local = ddp.localSgd({.period = 1, .startAfter = 0});
    local.averageState(optimizer);
    const at::Tensor index = at::full({1}, rank, at::kLong);
    const auto train = [&] {
      optimizer.zero_grad();
      at::embedding(weight, index, /*padding_idx=*/-1, /*scale_grad_by_freq=*/false, /*sparse=*/true).sum().backward();
      optimizer.step();
      local.step();
    };
    train();
    at::Tensor momentum = at::zeros({4, 2}, at::kDouble);  // of the mean: each rank has ones in a row of its own
    momentum.narrow(0, 0, 2).fill_(0.5);
    EXPECT_TRUE(close(weight.detach(), -momentum));
    EXPECT_TRUE(close(fieldsOf(optimizer, {weight})[0], momentum));
    train();
    EXPECT_TRUE(close(weight.detach(), -momentum * 2.5));  // momentum 0.5 m + m
    local.finish();
  });
}

// ---- machines

ProcessGroup groupOfTwo(Worker& worker) {
  const int first = worker.self().rank / 2 * 2;
  return ProcessGroup::make(worker, {"rank" + std::to_string(first), "rank" + std::to_string(first + 1)});
}

// Of two "machines" with two ranks each.
TEST(LocalSgdOverALargerGroup, AveragesGradientsInTheSmallGroupsAlways) {
  TensorJob job(ranks(4));
  job.onAll([&](Worker& worker) {
    const auto rank = static_cast<size_t>(worker.self().rank);
    const ProcessGroup all = ProcessGroup::make(worker, job.names(), {.name = "all"});
    LocalRank actual(groupOfTwo(worker), {.period = 3, .startAfter = 2, .group = all});
    actual.rank = worker.self().rank;
    SimulatedRanks expected(4);
    for (int step = 1; step <= 8; ++step) {
      actual.train(step);
      expected.backward(allOf(4), step);
      expected.averageGradients({0, 1});
      expected.averageGradients({2, 3});
      expected.step(allOf(4));
      if (step <= 2 || step == 5 || step == 8) expected.averageParameters(allOf(4));
      expected.expectOn(rank, actual);
      actual.ddp.verifyReplicas();
    }
    actual.local.finish();
  });
}

TEST(LocalSgdOverALargerGroup, BeginsWithEqualReplicas) {
  TensorJob job(ranks(4));
  std::vector<at::Tensor> weights(4);
  job.onAll([&](Worker& worker) {
    const int rank = worker.self().rank;
    Net net(static_cast<uint64_t>(10 * rank));
    DistributedDataParallel<Net> ddp(net, groupOfTwo(worker), smallBuckets());
    const ProcessGroup all = ProcessGroup::make(worker, job.names(), {.name = "all"});
    auto local = ddp.localSgd({.period = 3, .startAfter = 2, .group = all});
    weights[static_cast<size_t>(rank)] = net->first.detach().clone();
    local.finish();
  });
  for (const at::Tensor& one : weights) EXPECT_TRUE(haveEqualBits(one, Net(0)->first));
}

}  // namespace
}  // namespace treadle::test::local_sgd_test

// DistributedDataParallel trains what one process trains on all ranks' data together.

#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include "tests/support/gate.h"
#include "tests/train/ddp/net.h"

namespace treadle::test::ddp_test {
namespace {

TEST(DistributedDataParallel, BeginsWithParametersAndBuffersOfRankZero) {
  TensorJob job(ranks(3));
  job.onAll([&](Worker& worker) {
    Net net(static_cast<uint64_t>(10 * worker.self().rank));
    at::Tensor held = net->first;
    DistributedDataParallel<Net> ddp(net, ProcessGroup::make(worker, job.names()));
    EXPECT_EQ(net.get(), ddp.module().get());
    EXPECT_EQ(worker.self().rank, ddp.group().rank());
    Net first(0);
    for (const auto& entry : first->named_parameters())
      EXPECT_TRUE(at::equal(net->named_parameters()[entry.key()], entry.value())) << entry.key();
    EXPECT_TRUE(at::equal(net->offset, first->offset));
    EXPECT_TRUE(held.is_same(ddp->first)) << "the parameters stay the same objects";
  });
}

TEST(DistributedDataParallel, RefusesReplicasOfOtherShapes) {
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    ProcessGroup group = ProcessGroup::make(worker, job.names());
    torch::nn::Linear linear(3, 2 + worker.self().rank);
    EXPECT_THROW(DistributedDataParallel<torch::nn::Linear>(linear, group), ArgumentError);
  });
}

// With momentum and decay a gradient of zero is not the same as none.
torch::optim::SGDOptions sgd() { return torch::optim::SGDOptions(0.1).momentum(0.9).weight_decay(0.1); }

// Trains `net` on the batches of all ranks.
void trainAlone(Net& net, int size, int steps, bool skip) {
  torch::optim::SGD optimizer(net->parameters(), sgd());
  for (int step = 0; step < steps; ++step) {
    std::vector<at::Tensor> inputs;
    for (int rank = 0; rank < size; ++rank) inputs.push_back(inputOf(rank, step));
    optimizer.zero_grad();
    net->forward(at::cat(inputs), skip).square().mean().backward();
    optimizer.step();
  }
}

class Training : public ::testing::TestWithParam<std::tuple<int, bool>> {};

TEST_P(Training, EqualsOneProcessOnTheWholeBatch) {
  constexpr int kSteps = 4;
  auto [size, skip] = GetParam();
  TensorJob job(ranks(size));
  Net alone(0);
  trainAlone(alone, size, kSteps, skip);
  job.onAll([&](Worker& worker) {
    int rank = worker.self().rank;
    Net net(static_cast<uint64_t>(rank));
    DistributedDataParallel<Net> ddp(net, ProcessGroup::make(worker, job.names()), smallBuckets());
    torch::optim::SGD optimizer(net->parameters(), sgd());
    for (int step = 0; step < kSteps; ++step) {
      optimizer.zero_grad();
      ddp.forward(inputOf(rank, step), skip).square().mean().backward();
      optimizer.step();
    }
    for (const auto& entry : alone->named_parameters())
      EXPECT_TRUE(close(net->named_parameters()[entry.key()], entry.value())) << entry.key() << " on " << rank;
  });
}

INSTANTIATE_TEST_SUITE_P(Sizes, Training,
                         ::testing::Combine(::testing::Values(1, 2, 3), ::testing::Values(false, true)));

// On one rank only `skipped` is unused: it counts as zero there.
TEST(DistributedDataParallel, AParameterUnusedOnOneRankCountsAsZeroThere) {
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    int rank = worker.self().rank;
    Net net(0), alone(0);
    DistributedDataParallel<Net> ddp(net, ProcessGroup::make(worker, job.names()), smallBuckets());
    ddp.forward(inputOf(rank, 0), rank == 1).square().mean().backward();
    at::Tensor expected =
        (alone->forward(inputOf(0, 0), false).square().mean() + alone->forward(inputOf(1, 0), true).square().mean()) /
        2;
    expected.backward();
    for (const auto& entry : alone->named_parameters())
      EXPECT_TRUE(close(net->named_parameters()[entry.key()].grad(), entry.value().grad())) << entry.key();
  });
}

// Three passes into the same gradients: all ranks use `skipped`, then one does, then none.
TEST(DistributedDataParallel, AccumulatesOverPassesThatUseOtherParameters) {
  TensorJob job(ranks(2));
  auto skips = [](int rank, int pass) { return pass == 2 || (pass == 1 && rank == 0); };
  Net alone(0);
  for (int rank = 0; rank < 2; ++rank)
    for (int pass = 0; pass < 3; ++pass)
      alone->forward(inputOf(rank, pass), skips(rank, pass)).square().mean().div(2).backward();
  job.onAll([&](Worker& worker) {
    int rank = worker.self().rank;
    Net net(0);
    DistributedDataParallel<Net> ddp(net, ProcessGroup::make(worker, job.names()), smallBuckets());
    for (int pass = 0; pass < 3; ++pass) ddp.forward(inputOf(rank, pass), skips(rank, pass)).square().mean().backward();
    for (const auto& entry : alone->named_parameters())
      EXPECT_TRUE(close(net->named_parameters()[entry.key()].grad(), entry.value().grad())) << entry.key();
  });
}

// Rank 1 does by hand what its buckets would: the first all-reduce ends, and only then does rank 0's pass go on.
TEST(DistributedDataParallel, SendsABucketWhileThePassStillRuns) {
  TensorJob job(ranks(2));
  Gate firstIsThere;
  job.onAll([&](Worker& worker) {
    Net net(0);
    ProcessGroup group = ProcessGroup::make(worker, job.names());
    DistributedDataParallel<Net> ddp(net, group, smallBuckets());
    if (worker.self().rank == 0) {
      net->bias.register_hook([&](const at::Tensor&) { firstIsThere.wait(); });
      ddp.forward(inputOf(0, 0), false).square().mean().backward();
      return;
    }
    answerPass(group, net->parameters(), smallBuckets(), [&] { firstIsThere.open(); });
  });
}

TEST(DistributedDataParallel, AveragesWithinADistributedPassToo) {
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    int rank = worker.self().rank;
    Net net(0), alone(0);
    DistributedDataParallel<Net> ddp(net, ProcessGroup::make(worker, job.names()), smallBuckets());
    for (int step = 0; step < 3; ++step) {
      // The ranks use other parameters in turn, and no parameter's `.grad` is touched.
      AutogradContext context(worker);
      context.backward({ddp.forward(inputOf(rank, step), (rank + step) % 2 == 0).square().mean()});
      alone->zero_grad();
      ((alone->forward(inputOf(0, step), step % 2 == 0).square().mean() +
        alone->forward(inputOf(1, step), step % 2 == 1).square().mean()) /
       2)
          .backward();
      for (const auto& entry : alone->named_parameters()) {
        const at::Tensor parameter = net->named_parameters()[entry.key()];  // of a list that is gone after this line
        EXPECT_TRUE(close(context.gradient(parameter), entry.value().grad())) << entry.key() << " step " << step;
        EXPECT_FALSE(parameter.grad().defined());
      }
    }
  });
}

// What the user keeps in `.grad` of a parameter that no rank uses.
TEST(DistributedDataParallel, ADistributedPassDoesNotAverageWhatIsInGrad) {
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    Net net(0);
    DistributedDataParallel<Net> ddp(net, ProcessGroup::make(worker, job.names()), smallBuckets());
    net->skipped.mutable_grad() = at::ones_like(net->skipped);
    AutogradContext context(worker);
    context.backward({ddp.forward(inputOf(worker.self().rank, 0), true).square().mean()});
    EXPECT_FALSE(context.gradient(net->skipped).defined());
    EXPECT_TRUE(context.gradient(net->last).defined());
    EXPECT_TRUE(at::equal(net->skipped.grad(), at::ones_like(net->skipped)));
  });
}

}  // namespace
}  // namespace treadle::test::ddp_test

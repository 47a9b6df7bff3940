// Several replicas in one process train as one process does on the whole batch, however the parts are divided over
// ranks and replicas.

#include "treadle/train/ddp/replica_set.h"

#include <torch/optim/sgd.h>

#include <array>
#include <cmath>

#include "tests/train/ddp/tied_net.h"
#include "treadle/amp.h"
#include "treadle/tensor/optim/clip_grad_norm.h"

namespace treadle::test::replica_set_test {
namespace {

using namespace tied_net;

constexpr int kSteps = 50;

torch::optim::SGDOptions sgd() { return torch::optim::SGDOptions(0.05).momentum(0.9).weight_decay(0.01); }

std::vector<at::Tensor> trainedAlone() {
  TiedNet net;
  torch::optim::SGD optimizer(parametersOf(net), sgd());
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    at::Tensor loss = at::zeros({}, at::kDouble);
    for (int shard = 0; shard < kShards; ++shard) loss = loss + lossOfShard(*net, shard, step) / kShards;
    loss.backward();
    optimizer.step();
  }
  return copiesOf(parametersOf(net));
}

// Trains on the shards that belong to `rank`, and returns the losses of the first step.
std::vector<at::Tensor> train(ReplicaSet<TiedNet>& replicas, torch::optim::SGD* optimizer, int rank) {
  std::vector<at::Tensor> first;
  for (int step = 0; step < kSteps; ++step) {
    if (optimizer) optimizer->zero_grad();
    const std::vector<at::Tensor> losses = replicas.backward(
        [&](TiedNetImpl& replica, int index) { return lossOfShard(replica, rank * replicas.size() + index, step); });
    if (optimizer) optimizer->step();
    if (step == 0) first = losses;
  }
  return first;
}

class Split : public ::testing::TestWithParam<int> {};

TEST_P(Split, OfShardsOverRanksAndReplicasTrainsAsOneProcess) {
  const int size = GetParam(), each = kShards / size;
  const std::vector<at::Tensor> expected = trainedAlone();
  TensorJob job(ranks(size));
  job.onAll([&](Worker& worker) {
    TiedNet net, before;
    DistributedDataParallel<TiedNet> ddp(net, ProcessGroup::make(worker, job.names()), smallBuckets());
    ReplicaSet<TiedNet> replicas(ddp, {.replicas = each});
    torch::optim::SGD optimizer(parametersOf(net), sgd());
    const int rank = worker.self().rank;
    const std::vector<at::Tensor> losses = train(replicas, &optimizer, rank);
    expectClose(copiesOf(parametersOf(net)), expected, 1e-10);
    ddp.verifyReplicas();
    for (int index = 0; index < each; ++index) {
      EXPECT_TRUE(close(losses[static_cast<size_t>(index)], lossOfShard(*before, rank * each + index, 0).detach()));
      EXPECT_FALSE(losses[static_cast<size_t>(index)].requires_grad());
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, Split, ::testing::Values(1, 2, 4));

TEST(ReplicaSet, WithoutAGroupTrainsAsOneProcess) {
  TiedNet net;
  ReplicaSet<TiedNet> replicas(net, {.replicas = kShards});
  torch::optim::SGD optimizer(parametersOf(net), sgd());
  train(replicas, &optimizer, 0);
  expectClose(copiesOf(parametersOf(net)), trainedAlone(), 1e-10);
}

TEST(ReplicaSet, StepsWithinTheAveragedPass) {
  const std::vector<at::Tensor> expected = trainedAlone();
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    TiedNet net;
    DdpOptions options = smallBuckets();
    options.optimizerInBackward = std::make_shared<torch::optim::SGD>(parametersOf(net), sgd());
    DistributedDataParallel<TiedNet> ddp(net, ProcessGroup::make(worker, job.names()), options);
    ReplicaSet<TiedNet> replicas(ddp, {.replicas = 2});
    train(replicas, nullptr, worker.self().rank);
    expectClose(copiesOf(parametersOf(net)), expected, 1e-10);
  });
}

// What it sends is one pass of each rank, and passes under noSync add up.
TEST(ReplicaSet, AccumulatesUnderNoSync) {
  TensorJob job(ranks(2));
  TiedNet alone;
  for (int shard = 0; shard < kShards; ++shard)
    for (int step = 0; step < 3; ++step) lossOfShard(*alone, shard, step).div(kShards).backward();
  job.onAll([&](Worker& worker) {
    TiedNet net;
    DistributedDataParallel<TiedNet> ddp(net, ProcessGroup::make(worker, job.names()), smallBuckets());
    ReplicaSet<TiedNet> replicas(ddp, {.replicas = 2});
    auto backward = [&](int step) {
      replicas.backward(
          [&](TiedNetImpl& replica, int index) { return lossOfShard(replica, 2 * worker.self().rank + index, step); });
    };
    {
      auto unaveraged = ddp.noSync();
      backward(0);
      backward(1);
      EXPECT_EQ(ddp.pendingPasses(), 2U);
    }
    backward(2);
    expectClose(gradientsOf(net), gradientsOf(alone));
    EXPECT_EQ(ddp.stats().averagedPasses, 1U);
  });
}

// Counts of samples by pass and shard; some have none.
at::Tensor samplesOf(int shard, int pass) {
  return random({(3 * shard + 5 * pass) % 4, 5}, static_cast<uint64_t>(70 + 10 * pass + shard));
}

TEST(ReplicaSet, WeighsReplicasByTheirNumbersOfSamples) {
  constexpr int kPasses = 4;
  TiedNet alone;
  std::vector<at::Tensor> all;
  for (int shard = 0; shard < kShards; ++shard)
    for (int pass = 0; pass < kPasses; ++pass) all.push_back(samplesOf(shard, pass));
  const at::Tensor joined = at::cat(all);
  alone->forward(joined, false).square().sum().div(joined.size(0)).backward();
  auto lossOf = [](TiedNetImpl& net, int shard, int pass) {
    const at::Tensor input = samplesOf(shard, pass);
    if (input.size(0) == 0) return ReplicaLoss();  // no batch
    return ReplicaLoss(net.forward(input, false).square().sum(), static_cast<double>(input.size(0)));
  };
  for (const int size : {1, 2, 4}) {
    TensorJob job(ranks(size));
    job.onAll([&](Worker& worker) {
      const int each = kShards / size;
      TiedNet net;
      DdpOptions options = smallBuckets();
      options.divisor = Divisor::kWeights;
      DistributedDataParallel<TiedNet> ddp(net, ProcessGroup::make(worker, job.names()), options);
      EXPECT_EQ(ddp.options().divisor, Divisor::kWeights);
      ReplicaSet<TiedNet> replicas(ddp, {.replicas = each});
      auto backward = [&](int pass) {
        return replicas.backward(
            [&](TiedNetImpl& replica, int index) { return lossOf(replica, worker.self().rank * each + index, pass); });
      };
      {
        auto unaveraged = ddp.noSync();
        for (int pass = 0; pass < kPasses - 1; ++pass) backward(pass);
      }
      for (const at::Tensor& loss : backward(kPasses - 1)) EXPECT_TRUE(!loss.defined() || loss.dim() == 0);
      expectClose(gradientsOf(net), gradientsOf(alone));
    });
  }
}

// Rank 1 has no batch at all, so it gets rank 0's part of the average; then nobody has.
TEST(ReplicaSet, WithoutABatchSkipsThePass) {
  TensorJob job(ranks(2));
  TiedNet alone;
  lossOfShard(*alone, 1, 1).div(4).backward();
  job.onAll([&](Worker& worker) {
    TiedNet net;
    DistributedDataParallel<TiedNet> ddp(net, ProcessGroup::make(worker, job.names()), smallBuckets());
    ReplicaSet<TiedNet> replicas(ddp, {.replicas = 2});
    auto nothing = [](TiedNetImpl&, int) { return at::Tensor(); };
    replicas.backward(nothing);
    for (const at::Tensor& gradient : gradientsOf(net)) EXPECT_FALSE(gradient.defined());
    const std::vector<at::Tensor> losses = replicas.backward([&](TiedNetImpl& replica, int index) {
      return worker.self().rank == 0 && index == 1 ? lossOfShard(replica, 1, 1) : at::Tensor();
    });
    EXPECT_FALSE(losses[0].defined());
    EXPECT_EQ(losses[1].defined(), worker.self().rank == 0);
    expectClose(gradientsOf(net), gradientsOf(alone));
  });
}

// Two ranks with two shards each, simulated one after the other.
class SimulatedPair {
 public:
  void backward(int step) {
    for (int shard = 0; shard < kShards; ++shard)
      lossOfShard(*nets_[static_cast<size_t>(shard / 2)], shard, step).div(2).backward();
  }
  void averageGradients() {
    for (size_t i = 0; i < 3; ++i) {
      const at::Tensor mean = (parameters(0)[i].grad() + parameters(1)[i].grad()) / 2;
      for (const size_t rank : {0, 1}) parameters(rank)[i].mutable_grad() = mean.clone();
    }
  }
  void step() {
    for (torch::optim::SGD& optimizer : optimizers_) {
      optimizer.step();
      optimizer.zero_grad();
    }
  }
  void averageParameters() {
    const at::NoGradGuard noGrad;
    for (size_t i = 0; i < 3; ++i) {
      const at::Tensor mean = (parameters(0)[i] + parameters(1)[i]) / 2;
      for (const size_t rank : {0, 1}) parameters(rank)[i].copy_(mean);
    }
  }
  std::vector<at::Tensor> parameters(size_t rank) const { return parametersOf(nets_[rank]); }

 private:
  std::array<TiedNet, 2> nets_;
  std::array<torch::optim::SGD, 2> optimizers_{torch::optim::SGD(parameters(0), sgd()),
                                               torch::optim::SGD(parameters(1), sgd())};
};

// Averaged gradients in the first steps, and then parameters that are averaged in every third one.
TEST(ReplicaSet, TrainsByLocalSgd) {
  constexpr int kStartAfter = 2, kPeriod = 3;
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    const int rank = worker.self().rank;
    TiedNet net;
    DistributedDataParallel<TiedNet> ddp(net, ProcessGroup::make(worker, job.names()), smallBuckets());
    ReplicaSet<TiedNet> replicas(ddp, {.replicas = 2});
    torch::optim::SGD optimizer(parametersOf(net), sgd());
    auto local = ddp.localSgd({.period = kPeriod, .startAfter = kStartAfter});
    SimulatedPair expected;
    for (int step = 1; step <= 9; ++step) {
      optimizer.zero_grad();
      replicas.backward([&](TiedNetImpl& replica, int index) { return lossOfShard(replica, 2 * rank + index, step); });
      optimizer.step();
      local.step();
      expected.backward(step);
      if (step <= kStartAfter) expected.averageGradients();
      expected.step();
      if (step == 5 || step == 8) expected.averageParameters();
      expectClose(copiesOf(parametersOf(net)), copiesOf(expected.parameters(static_cast<size_t>(rank))));
    }
    local.finish();
  });
}

TEST(ReplicaSet, WithoutABatchAndAGroupDoesNothing) {
  for (const Divisor divisor : {Divisor::kWorldSize, Divisor::kWeights}) {
    TiedNet net;
    const std::vector<at::Tensor> buffers = copiesOf(net->buffers());
    ReplicaSet<TiedNet> replicas(net, {.replicas = 2, .divisor = divisor});
    replicas.backward([](TiedNetImpl&, int) { return at::Tensor(); });
    for (const at::Tensor& gradient : gradientsOf(net)) EXPECT_FALSE(gradient.defined());
    expectSame(copiesOf(net->buffers()), buffers);
  }
}

// Rank 1 has no batch in the last passes; in one, a replica of rank 0 has none either.
TEST(ReplicaSet, JoinsRanksThatHaveFewerBatches) {
  auto hasBatch = [](int shard, int step) { return step < (shard < 2 ? 4 : 2) && !(shard == 1 && step == 3); };
  TiedNet alone;
  torch::optim::SGD optimizer(parametersOf(alone), sgd());
  for (int step = 0; step < 4; ++step) {
    optimizer.zero_grad();
    for (int shard = 0; shard < kShards; ++shard)
      if (hasBatch(shard, step)) lossOfShard(*alone, shard, step).div(kShards).backward();
    optimizer.step();
  }
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    TiedNet net;
    DistributedDataParallel<TiedNet> ddp(net, ProcessGroup::make(worker, job.names()), smallBuckets());
    ReplicaSet<TiedNet> replicas(ddp, {.replicas = 2});
    torch::optim::SGD optimizer(parametersOf(net), sgd());
    auto join = ddp.join([&] { optimizer.step(); });
    const int rank = worker.self().rank;
    for (int step = 0; hasBatch(2 * rank, step); ++step) {
      optimizer.zero_grad();
      replicas.backward([&](TiedNetImpl& replica, int index) {
        const int shard = 2 * rank + index;
        return hasBatch(shard, step) ? lossOfShard(replica, shard, step) : at::Tensor();
      });
      optimizer.step();
    }
    join.finish();
    expectClose(copiesOf(parametersOf(net)), copiesOf(parametersOf(alone)), 1e-10);
    ddp.verifyReplicas();
  });
}

// A scaler, a hook that sends 16-bit floats, a program's hook of a parameter, and clipping: the second pass overflows
// in one replica of one rank.
TEST(ReplicaSet, TrainsWithGradScalerCastHookAndClipping) {
  constexpr double kMaxNorm = 0.5, kScale = 1024;
  TiedNet alone;
  torch::optim::SGD plain(parametersOf(alone), sgd());
  double norm = 0;
  for (const int step : {0, 2}) {
    plain.zero_grad();
    for (int shard = 0; shard < kShards; ++shard) lossOfShard(*alone, shard, step).div(kShards).backward();
    alone->bias.mutable_grad().mul_(2);
    norm = clipGradNorm(alone->parameters(), kMaxNorm);
    EXPECT_GT(norm, kMaxNorm);
    plain.step();
  }
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    TiedNet net;
    DdpOptions options = smallBuckets();
    options.hook = std::make_shared<CastHook>(at::kBFloat16);
    const ProcessGroup group = ProcessGroup::make(worker, job.names());
    DistributedDataParallel<TiedNet> ddp(net, group, options);
    net->bias.register_hook([](const at::Tensor& gradient) { return 2 * gradient; });
    ReplicaSet<TiedNet> replicas(ddp, {.replicas = 2});
    torch::optim::SGD optimizer(parametersOf(net), sgd());
    GradScaler scaler(group, {.initialScale = kScale});
    for (const int step : {0, 1, 2}) {
      optimizer.zero_grad();
      replicas.backward([&](TiedNetImpl& replica, int index) {
        const int shard = 2 * worker.self().rank + index;
        const at::Tensor loss = scaler.scale(lossOfShard(replica, shard, step));
        return step == 1 && shard == 2 ? loss * HUGE_VAL : loss;
      });
      scaler.unscale(optimizer);
      if (step != 1) {
        EXPECT_NEAR(clipGradNorm(net->parameters(), kMaxNorm), norm, step == 2 ? 0.01 * norm : norm);
      }
      EXPECT_EQ(scaler.step(optimizer), step != 1);
      scaler.update();
    }
    EXPECT_EQ(scaler.currentScale(), kScale / 2);
    expectClose(copiesOf(parametersOf(net)), copiesOf(parametersOf(alone)), 1e-3);
    ddp.verifyReplicas();
  });
}

}  // namespace
}  // namespace treadle::test::replica_set_test

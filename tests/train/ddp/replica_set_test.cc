// Several replicas in one process train as one process does on the whole batch, however the parts are divided over
// ranks and replicas. What goes wrong in a replica changes nothing.

#include "treadle/train/ddp/replica_set.h"

#include <ATen/Parallel.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <atomic>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <thread>

#include "tests/support/expect_error.h"
#include "tests/support/gate.h"
#include "tests/support/seeds.h"
#include "tests/train/ddp/net.h"
#include "treadle/amp.h"
#include "treadle/tensor/optim/clip_grad_norm.h"
#include "treadle/train/ddp/thread_generator.h"

namespace treadle::test::replica_set_test {
namespace {

using namespace ddp_test;

// A layer whose weight the net has by another name too, a branch, and a buffer. A clone has two tensors for the weight.
struct LayerImpl : torch::nn::Cloneable<LayerImpl> {
  LayerImpl() { LayerImpl::reset(); }
  void reset() override { weight = register_parameter("weight", random({5, 5}, 1)); }
  at::Tensor weight;
};
TORCH_MODULE(Layer);

struct TiedNetImpl : torch::nn::Cloneable<TiedNetImpl> {
  TiedNetImpl() { TiedNetImpl::reset(); }
  void reset() override {
    layer = register_module("layer", Layer());
    again = register_parameter("again", layer->weight);
    bias = register_parameter("bias", random({5}, 2));
    skipped = register_parameter("skipped", random({5, 5}, 3));
    sum = register_buffer("sum", at::zeros({5}, at::kDouble));
    constant = register_buffer("constant", random({100}, 4));
  }
  at::Tensor forward(const at::Tensor& input, bool skip) {
    if (is_training()) {
      const at::NoGradGuard noGrad;
      sum.mul_(0.5).add_(input.sum(0));
    }
    at::Tensor hidden = at::tanh(input.mm(layer->weight) + bias);
    if (!skip) hidden = at::tanh(hidden.mm(skipped));
    return hidden.mm(again);
  }
  Layer layer = nullptr;
  at::Tensor again, bias, skipped, sum, constant;
};
TORCH_MODULE(TiedNet);

constexpr int kShards = 4, kSteps = 50;

// Some shards do not use a parameter, and in some steps none does.
bool skips(int shard, int step) { return step % 7 == 3 || (shard + step) % 3 == 0; }

at::Tensor lossOfShard(TiedNetImpl& net, int shard, int step) {
  return net.forward(inputOf(shard, step), skips(shard, step)).square().mean();
}

torch::optim::SGDOptions sgd() { return torch::optim::SGDOptions(0.05).momentum(0.9).weight_decay(0.01); }

std::vector<at::Tensor> parametersOf(const TiedNet& net) { return {net->layer->weight, net->bias, net->skipped}; }

template <class M>
std::vector<at::Tensor> gradientsOf(const M& net) {
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& parameter : net->parameters())
    gradients.push_back(parameter.grad().defined() ? parameter.grad().clone() : at::Tensor());
  return gradients;
}

void expectClose(const std::vector<at::Tensor>& actual, const std::vector<at::Tensor>& expected,
                 double tolerance = 1e-12) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    ASSERT_EQ(actual[i].defined(), expected[i].defined()) << i;
    if (actual[i].defined()) {
      EXPECT_TRUE(close(actual[i], expected[i], tolerance)) << i;
    }
  }
}

// Equal bits, and undefined where the other is.
void expectSame(const std::vector<at::Tensor>& actual, const std::vector<at::Tensor>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    ASSERT_EQ(actual[i].defined(), expected[i].defined()) << i;
    if (actual[i].defined()) {
      EXPECT_TRUE(haveEqualBits(actual[i], expected[i])) << i;
    }
  }
}

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

TEST(ReplicaSet, DividesAsTheDivisorSaysWithoutAGroup) {
  for (const Divisor divisor : {Divisor::kWorldSize, Divisor::kSum, Divisor::kWeights}) {
    TiedNet net, alone;
    ReplicaSet<TiedNet> replicas(net, {.replicas = 3, .divisor = divisor});
    const double weights = 1 + 2.5;  // replica 2 has no batch
    const double by = divisor == Divisor::kWorldSize ? 3 : divisor == Divisor::kSum ? 1 : weights;
    for (int shard = 0; shard < 2; ++shard) lossOfShard(*alone, shard, 0).div(by).backward();
    replicas.backward([&](TiedNetImpl& replica, int index) {
      if (index == 2) return ReplicaLoss();
      const at::Tensor loss = lossOfShard(replica, index, 0);
      return divisor == Divisor::kWeights ? ReplicaLoss(loss, 1 + 1.5 * index) : ReplicaLoss(loss);
    });
    expectClose(gradientsOf(net), gradientsOf(alone));
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

// The sum is ((g0 + g1) + g2) / 3 in float32, bit by bit, whichever replica ends first.
TEST(ReplicaSet, AddsInTheOrderOfReplicas) {
  torch::nn::Linear net(64, 32);
  const at::Tensor input = at::rand({6, 64});
  auto lossOf = [&](torch::nn::LinearImpl& replica, int index) {
    return replica.forward(input.narrow(0, 2 * index, 2)).pow(3).mean();
  };
  std::vector<at::Tensor> expected;
  ReplicaSet<torch::nn::Linear> single(net, {.replicas = 1, .intraOpThreads = 1});
  for (int index = 0; index < 3; ++index) {
    net->zero_grad();
    single.backward([&](torch::nn::LinearImpl& replica, int) { return lossOf(replica, index); });
    const std::vector<at::Tensor> gradients = gradientsOf(net);
    if (index == 0) expected = gradients;
    for (size_t i = 0; index > 0 && i < gradients.size(); ++i) expected[i] = expected[i] + gradients[i];
  }
  for (at::Tensor& sum : expected) sum = sum / 3;
  ReplicaSet<torch::nn::Linear> replicas(net, {.replicas = 3, .intraOpThreads = 1});
  for (const bool forwards : {true, false}) {
    net->zero_grad();
    std::vector<Gate> done(3);  // each opens where its replica's pass has come to the weight
    replicas.backward([&](torch::nn::LinearImpl& replica, int index) {
      const int before = forwards ? index - 1 : index + 1;
      const at::Tensor part = input.narrow(0, 2 * index, 2).clone().requires_grad_();
      part.register_hook([&done, index](const at::Tensor&) { done[static_cast<size_t>(index)].open(); });
      at::Tensor loss = replica.forward(part).pow(3).mean();
      loss.register_hook([&done, before](const at::Tensor&) {
        if (before >= 0 && before < 3) done[static_cast<size_t>(before)].wait();
      });
      return loss;
    });
    expectSame(gradientsOf(net), expected);
  }
}

// A function that captures the module, where it should use its replica.
TEST(ReplicaSet, RefusesALossOfTheModuleItself) {
  TensorJob job(ranks(2));
  Counter ended;
  job.onAll([&](Worker& worker) {
    TiedNet net, alone;
    DistributedDataParallel<TiedNet> ddp(net, ProcessGroup::make(worker, job.names()), smallBuckets());
    ReplicaSet<TiedNet> replicas(ddp, {.replicas = 2});
    const int rank = worker.self().rank;
    net->bias.mutable_grad() = at::ones({5}, at::kDouble);
    const std::vector<at::Tensor> before = gradientsOf(net);
    for (const int which : {0, 1}) {
      auto backward = [&] {
        replicas.backward([&](TiedNetImpl& replica, int index) {
          at::Tensor loss = lossOfShard(replica, index, 0);
          if (index == which) loss = loss + net->bias.sum();
          return loss;
        });
      };
      const std::string message = messageOf<StateError>(backward);
      EXPECT_TRUE(contains(message, "replica " + std::to_string(which) + " of 2: "));
      EXPECT_TRUE(contains(message, "parameter 'bias' of the module itself"));
      expectSame(gradientsOf(net), before);
    }
    EXPECT_EQ(ddp.pendingPasses(), 0U);
    // Nothing was sent, and the module may be used as before.
    net->zero_grad();
    lossOfShard(*net, rank, 1).backward();
    for (int shard = 0; shard < 2; ++shard) lossOfShard(*alone, shard, 1).div(2).backward();
    expectClose(gradientsOf(net), gradientsOf(alone));
    ended.add();
    ended.waitFor(2);
  });
}

// What the set says of losses that `change` has changed.
template <class F>
std::string refusalOf(ReplicaSet<TiedNet>& replicas, F change) {
  return messageOf<StateError>([&] {
    replicas.backward(
        [&](TiedNetImpl& replica, int index) { return change(lossOfShard(replica, index, 0), replica, index); });
  });
}

TEST(ReplicaSet, RefusesALossOfAnotherReplica) {
  TiedNet net;
  ReplicaSet<TiedNet> replicas(net, {.replicas = 2});
  TiedNetImpl* first = nullptr;
  Gate isKnown;
  const std::string message = refusalOf(replicas, [&](const at::Tensor& loss, TiedNetImpl& replica, int index) {
    if (index == 1) {
      isKnown.wait();
      return loss + first->bias.sum();
    }
    first = &replica;
    isKnown.open();
    return loss;
  });
  EXPECT_TRUE(contains(message, "replica 1 of 2: the loss depends on parameter 'bias' of replica 0"));
  for (const at::Tensor& gradient : gradientsOf(net)) EXPECT_FALSE(gradient.defined());
}

TEST(ReplicaSet, RefusesLossesOfAnotherModule) {
  TiedNet net, other;
  ReplicaSet<TiedNet> replicas(net, {.replicas = 3});
  const std::string message = refusalOf(replicas, [&](const at::Tensor& loss, TiedNetImpl&, int index) {
    return index == 0 ? loss : loss + other->bias.sum();
  });
  EXPECT_TRUE(contains(message, "replica 2 of 3: the loss depends on a trained tensor of Double [5]"));
  EXPECT_TRUE(contains(message, "the loss of replica 1 does too"));
  for (TiedNet one : {net, other})
    for (const at::Tensor& gradient : gradientsOf(one)) EXPECT_FALSE(gradient.defined());
  // As constants they may be in it, and a leaf that one replica alone has gets its own gradient.
  const at::Tensor scale = at::ones({}, at::kDouble).requires_grad_();
  TiedNet alone;
  replicas.backward([&](TiedNetImpl& replica, int index) {
    const at::Tensor loss = lossOfShard(replica, index, 0) + other->bias.detach().sum();
    return index == 1 ? loss * scale : loss;
  });
  for (int shard = 0; shard < 3; ++shard) lossOfShard(*alone, shard, 0).div(3).backward();
  expectClose(gradientsOf(net), gradientsOf(alone));
  EXPECT_TRUE(close(scale.grad(), lossOfShard(*alone, 1, 0).detach() + other->bias.detach().sum()));
}

// One replica alone: nothing but the hook shows that others wait for that module's gradients.
TEST(ReplicaSet, RefusesALossOfAnotherDistributedDataParallel) {
  TensorJob job(ranks(1));
  job.onAll([&](Worker& worker) {
    TiedNet net, other;
    const ProcessGroup group = ProcessGroup::make(worker, job.names());
    DistributedDataParallel<TiedNet> ddp(net, group, smallBuckets()), another(other, group, smallBuckets());
    ReplicaSet<TiedNet> replicas(ddp, {.replicas = 1});
    EXPECT_TRUE(contains(
        refusalOf(replicas, [&](const at::Tensor& loss, TiedNetImpl&, int) { return loss + other->bias.sum(); }),
        "has a hook of a DistributedDataParallel"));
    EXPECT_FALSE(other->bias.grad().defined());
    EXPECT_EQ(another.stats().averagedPasses, 0U);
  });
}

// The walk over a loss keeps its own stack.
TEST(ReplicaSet, TakesALossOfADeepGraph) {
  TiedNet net;
  ReplicaSet<TiedNet> replicas(net, {.replicas = 2});
  replicas.backward([&](TiedNetImpl& replica, int) {
    at::Tensor loss = replica.bias.sum();
    for (int i = 0; i < 200000; ++i) loss = loss + 1;
    return loss;
  });
  EXPECT_TRUE(close(net->bias.grad(), at::ones({5}, at::kDouble)));
}

TEST(ReplicaSet, NoticesFunctionsThatChangeWhatReplicasShare) {
  TiedNet net;
  ReplicaSet<TiedNet> replicas(net, {.replicas = 2});
  auto refusalOfOne = [&](auto change) {
    return refusalOf(replicas, [&](const at::Tensor& loss, TiedNetImpl& replica, int index) {
      return index == 1 ? change(loss, replica) : loss;
    });
  };
  using Loss = const at::Tensor&;
  const std::string who = "replica 1 of 2: its function ";
  EXPECT_TRUE(contains(refusalOfOne([](Loss loss, TiedNetImpl& replica) {
                         const at::NoGradGuard noGrad;
                         replica.bias.clamp_(-10, 10);
                         return loss;
                       }),
                       who + "wrote parameter 'bias'"));
  EXPECT_TRUE(contains(refusalOfOne([](Loss loss, TiedNetImpl& replica) {
                         replica.skipped.set_requires_grad(false);
                         return loss;
                       }),
                       who + "froze or unfroze parameter 'skipped'"));
  for (const bool returnsLoss : {false, true})
    EXPECT_TRUE(contains(refusalOfOne([&](Loss loss, TiedNetImpl&) {
                           loss.backward({}, /*retain_graph=*/true);
                           return returnsLoss ? loss : at::Tensor();
                         }),
                         who + "computed a gradient of parameter"));
  for (const at::Tensor& gradient : gradientsOf(net)) EXPECT_FALSE(gradient.defined());
  TiedNet alone;  // what they left in replicas does not count
  replicas.backward([&](TiedNetImpl& replica, int index) { return lossOfShard(replica, index, 0); });
  for (int shard = 0; shard < 2; ++shard) lossOfShard(*alone, shard, 0).div(2).backward();
  expectClose(gradientsOf(net), gradientsOf(alone));
}

TEST(ReplicaSet, RefusesEmbeddingsThatNormalizeTheirWeight) {
  const torch::nn::Embedding words(torch::nn::EmbeddingOptions(4, 2).max_norm(1));
  EXPECT_TRUE(contains(messageOf<ArgumentError>([&] { ReplicaSet<torch::nn::Embedding>{words}; }), "max_norm"));
  const torch::nn::EmbeddingBag bag(torch::nn::EmbeddingBagOptions(4, 2).max_norm(1));
  EXPECT_TRUE(contains(messageOf<ArgumentError>([&] { ReplicaSet<torch::nn::EmbeddingBag>{bag}; }), "max_norm"));
}

// A hidden state that was not detached: its graph has saved weights from before the step.
TEST(ReplicaSet, NoticesThatAKeptGraphHasOldWeights) {
  TiedNet net;
  ReplicaSet<TiedNet> replicas(net, {.replicas = 1});
  at::Tensor hidden = inputOf(0, 0);
  auto kept = [&] {
    replicas.backward([&](TiedNetImpl& replica, int) { return hidden.mm(replica.layer->weight).sum(); });
  };
  replicas.backward([&](TiedNetImpl& replica, int) {
    hidden = hidden.mm(replica.layer->weight).mm(replica.skipped);
    return replica.bias.sum();
  });
  {
    const at::NoGradGuard noGrad;
    net->skipped.mul_(2);
  }
  EXPECT_TRUE(contains(messageOf<RemoteError>(kept), "modified by an inplace operation"));
}

TEST(ReplicaSet, ChangesNothingWhereReplicasThrow) {
  TiedNet net, alone;
  ReplicaSet<TiedNet> replicas(net, {.replicas = 3, .buffers = Buffers::kAverage});
  lossOfShard(*net, 0, 0).backward();
  lossOfShard(*alone, 0, 0).backward();
  const std::vector<at::Tensor> gradients = gradientsOf(net), buffers = copiesOf(net->buffers());
  auto backward = [&](const std::set<int>& throwing, bool inBackward) {
    replicas.backward([&](TiedNetImpl& replica, int index) {
      at::Tensor input = inputOf(index, 1).requires_grad_();
      if (throwing.contains(index) && inBackward) input = Broken::apply(input);
      at::Tensor loss = replica.forward(input, false).square().mean();
      if (throwing.contains(index) && !inBackward) throw std::out_of_range("no such sample");
      return loss;
    });
  };
  for (const bool inBackward : {false, true}) {
    const Status one = statusOf<RemoteError>([&] { backward({1}, inBackward); });
    EXPECT_TRUE(contains(one.message(), "replica 1 of 3: "));
    EXPECT_TRUE(contains(one.message(), inBackward ? "this node fails" : "no such sample"));
    EXPECT_EQ(one.remoteType(), inBackward ? "std::runtime_error" : "std::out_of_range");
    EXPECT_TRUE(
        contains(messageOf<RemoteError>([&] { backward({0, 2}, inBackward); }), "replica 0 of 3 (1 more failed): "));
  }
  expectSame(gradientsOf(net), gradients);
  expectSame(copiesOf(net->buffers()), buffers);
  backward({}, false);  // what the failed ones left in replicas does not count
  for (int shard = 0; shard < 3; ++shard) alone->forward(inputOf(shard, 1), false).square().mean().div(3).backward();
  expectClose(gradientsOf(net), gradientsOf(alone));
}

TEST(ReplicaSet, IsNotUsedFromItsOwnFunction) {
  TiedNet net;
  ReplicaSet<TiedNet> replicas(net, {.replicas = 2});
  auto lossOf = [](TiedNetImpl& replica, int index) { return lossOfShard(replica, index, 0); };
  auto nested = [&] {
    replicas.backward([&](TiedNetImpl& replica, int index) {
      if (index == 1) replicas.backward(lossOf);
      return lossOf(replica, index);
    });
  };
  EXPECT_TRUE(contains(messageOf<StateError>(nested), "replica 1 of 2: backward() of a ReplicaSet is called while"));
  for (const at::Tensor& gradient : gradientsOf(net)) EXPECT_FALSE(gradient.defined());
  replicas.backward(lossOf);
}

TEST(ReplicaSet, FollowsWhatIsFrozenAndTrained) {
  TiedNet net, alone;
  net->bias.set_requires_grad(false);
  ReplicaSet<TiedNet> replicas(net, {.replicas = 2});
  for (const bool isTrained : {false, true, false}) {
    for (TiedNet one : {net, alone}) {
      one->zero_grad();
      one->bias.set_requires_grad(isTrained);
    }
    replicas.backward([&](TiedNetImpl& replica, int index) { return lossOfShard(replica, index, 0); });
    for (int shard = 0; shard < 2; ++shard) lossOfShard(*alone, shard, 0).div(2).backward();
    EXPECT_EQ(net->bias.grad().defined(), isTrained);
    expectClose(gradientsOf(net), gradientsOf(alone));
  }
}

TEST(ReplicaSet, OfADistributedDataParallelNoticesWhatIsFrozenSince) {
  TensorJob job(ranks(1));
  job.onAll([&](Worker& worker) {
    TiedNet net;
    DistributedDataParallel<TiedNet> ddp(net, ProcessGroup::make(worker, job.names()), smallBuckets());
    ReplicaSet<TiedNet> replicas(ddp, {.replicas = 2});
    net->bias.set_requires_grad(false);
    auto backward = [&] {
      replicas.backward([&](TiedNetImpl& replica, int index) { return lossOfShard(replica, index, 0); });
    };
    EXPECT_TRUE(contains(messageOf<StateError>(backward), "parameter 'bias' requires no gradient any more"));
  });
}

TEST(ReplicaSet, RefusesAModuleThatWasConverted) {
  TiedNet net;
  ReplicaSet<TiedNet> replicas(net, {.replicas = 2});
  net->to(at::kFloat);
  auto backward = [&] {
    replicas.backward(
        [&](TiedNetImpl& replica, int) { return replica.forward(inputOf(0, 0).to(at::kFloat), false).mean(); });
  };
  EXPECT_TRUE(
      contains(messageOf<StateError>(backward), "is of Float [5, 5] on cpu now, and was of Double [5, 5] on cpu"));
  net->to(at::kDouble);
  replicas.backward([&](TiedNetImpl& replica, int index) { return lossOfShard(replica, index, 0); });
}

// As a program does that loads a state by set_data.
TEST(ReplicaSet, SeesOtherMemoryOfAParameter) {
  TiedNet net, alone;
  ReplicaSet<TiedNet> replicas(net, {.replicas = 2});
  for (TiedNet one : {net, alone}) one->bias.set_data(at::full({5}, 0.25, at::kDouble));
  replicas.backward([&](TiedNetImpl& replica, int index) { return lossOfShard(replica, index, 0); });
  for (int shard = 0; shard < 2; ++shard) lossOfShard(*alone, shard, 0).div(2).backward();
  expectClose(gradientsOf(net), gradientsOf(alone));
}

TEST(ReplicaSet, FollowsTheModesOfModules) {
  torch::nn::Sequential net(torch::nn::Linear(2, 2), torch::nn::Dropout(0.5));
  ReplicaSet<torch::nn::Sequential> replicas(net, {.replicas = 2});
  for (const bool isTraining : {false, true})
    for (const bool drops : {false, true}) {
      net->train(isTraining);
      net->ptr(1)->train(drops);
      replicas.backward([&](torch::nn::SequentialImpl& replica, int) {
        EXPECT_EQ(replica.is_training(), isTraining);
        EXPECT_EQ(replica.ptr(0)->is_training(), isTraining);
        EXPECT_EQ(replica.ptr(1)->is_training(), drops);
        return replica.forward(at::ones({1, 2})).sum();
      });
    }
}

// A clone of a Sequential has numbers in place of these names.
TEST(ReplicaSet, FindsTheModulesOfASequentialByTheirPlaces) {
  torch::nn::Sequential net(
      {{"1", torch::nn::Linear(3, 3)}, {"0", torch::nn::Linear(3, 3)}, {"last", torch::nn::Tanh()}});
  net->to(at::kDouble);
  const auto alone = std::dynamic_pointer_cast<torch::nn::SequentialImpl>(net->clone());
  ReplicaSet<torch::nn::Sequential> replicas(net, {.replicas = 2});
  const at::Tensor input = random({4, 3}, 1);
  replicas.backward([&](torch::nn::SequentialImpl& replica, int index) {
    return replica.forward(input.narrow(0, 2 * index, 2)).square().mean();
  });
  alone->forward(input).square().mean().backward();
  expectClose(gradientsOf(net), gradientsOf(alone));
}

TEST(ReplicaSet, MergesBuffers) {
  for (const Buffers mode : {Buffers::kOnce, Buffers::kFromRank0, Buffers::kAverage}) {
    TiedNet net;
    ReplicaSet<TiedNet> replicas(net, {.replicas = 3, .buffers = mode});
    const at::Tensor constant = net->constant.clone();
    at::Tensor expected = at::zeros({5}, at::kDouble);
    for (int step = 0; step < 3; ++step) {
      const bool firstHasBatch = step != 1;
      replicas.backward([&](TiedNetImpl& replica, int index) {
        return index == 0 && !firstHasBatch ? at::Tensor() : lossOfShard(replica, index, step);
      });
      std::vector<at::Tensor> ofReplicas;
      for (int index = 0; index < 3; ++index)
        ofReplicas.push_back(index == 0 && !firstHasBatch ? expected : expected * 0.5 + inputOf(index, step).sum(0));
      const size_t first = firstHasBatch ? 0 : 1;
      expected = mode == Buffers::kAverage ? (ofReplicas[0] + ofReplicas[1] + ofReplicas[2]) / 3 : ofReplicas[first];
      EXPECT_TRUE(close(net->sum, expected, 1e-12)) << step;
    }
    EXPECT_TRUE(haveEqualBits(net->constant, constant));
    const at::Tensor rounded = constant * (1.0 / 3) + constant * (1.0 / 3) + constant * (1.0 / 3);
    EXPECT_FALSE(at::equal(rounded, constant));  // a mean would have changed it
  }
}

// Running statistics of all replicas of all ranks, weighted by samples.
TEST(ReplicaSet, AveragesBuffersOverRanksAndReplicas) {
  auto inputOfShard = [](int shard) { return random({2 + shard, 3}, static_cast<uint64_t>(shard)); };
  at::Tensor mean = at::zeros({3}, at::kDouble);
  for (int shard = 0; shard < kShards; ++shard) mean += (2 + shard) * 0.1 * inputOfShard(shard).mean(0) / 14;
  for (const int size : {1, 2, 4}) {
    TensorJob job(ranks(size));
    job.onAll([&](Worker& worker) {
      torch::nn::BatchNorm1d net(3);
      net->to(at::kDouble);
      DdpOptions options{.buffers = Buffers::kAverage, .divisor = Divisor::kWeights};
      DistributedDataParallel<torch::nn::BatchNorm1d> ddp(net, ProcessGroup::make(worker, job.names()), options);
      ReplicaSet<torch::nn::BatchNorm1d> replicas(ddp, {.replicas = kShards / size});
      replicas.backward([&](torch::nn::BatchNorm1dImpl& replica, int index) {
        const at::Tensor input = inputOfShard(worker.self().rank * replicas.size() + index);
        return ReplicaLoss(replica.forward(input).square().sum(), static_cast<double>(input.size(0)));
      });
      EXPECT_TRUE(close(net->running_mean, mean, 1e-12));
      EXPECT_EQ(net->num_batches_tracked.item<int64_t>(), 1);
    });
  }
}

// Replica 1 uses the weight as a dense tensor, so the sum is dense.
TEST(ReplicaSet, AddsSparseGradients) {
  for (const bool mixed : {false, true}) {
    torch::nn::Embedding words(torch::nn::EmbeddingOptions(6, 2).sparse(true));
    ReplicaSet<torch::nn::Embedding> replicas(words, {.replicas = 3});
    for (int pass = 0; pass < 2; ++pass)
      replicas.backward([&](torch::nn::EmbeddingImpl& replica, int index) {
        if (mixed && index == 1) return replica.weight.square().sum();
        return replica.forward(at::arange(2) + index).sum();
      });
    at::Tensor expected = at::zeros({6, 2});
    for (int index = 0; index < 3; ++index)
      mixed&& index == 1 ? expected.add_(2 * words->weight.detach()) : expected.narrow(0, index, 2).add_(1);
    EXPECT_EQ(words->weight.grad().is_sparse(), !mixed);
    EXPECT_TRUE(close(words->weight.grad().to_dense(), expected * 2 / 3, 1e-6));
  }
}

// The second pass finds the table in no bucket.
TEST(ReplicaSet, AveragesSparseGradientsOverRanksAndReplicas) {
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    torch::nn::Embedding words(torch::nn::EmbeddingOptions(6, 2).sparse(true));
    DistributedDataParallel<torch::nn::Embedding> ddp(words, ProcessGroup::make(worker, job.names()));
    ReplicaSet<torch::nn::Embedding> replicas(ddp, {.replicas = 2});
    const int rank = worker.self().rank;
    for (int pass = 0; pass < 2; ++pass) {
      words->zero_grad();
      replicas.backward([&](torch::nn::EmbeddingImpl& replica, int index) {
        return replica.forward(at::arange(2) + 2 * rank + index).sum();
      });
      at::Tensor expected = at::zeros({6, 2});
      for (int shard = 0; shard < 4; ++shard) expected.narrow(0, shard, 2).add_(0.25);
      EXPECT_TRUE(words->weight.grad().is_sparse());
      EXPECT_TRUE(close(words->weight.grad().to_dense(), expected, 1e-6));
    }
  });
}

// Both orders in which the replicas come to their Dropout.
TEST(ReplicaSet, DropsDifferentlyInEachReplicaAndTheSameInEachRun) {
  torch::nn::Sequential net(torch::nn::Linear(1, 1), torch::nn::Dropout(0.5));
  ReplicaSet<torch::nn::Sequential> replicas(net, {.replicas = 2});
  auto run = [&](uint64_t seed, int first) {
    torch::manual_seed(seed);
    std::vector<at::Tensor> masks(4);
    for (int pass = 0; pass < 2; ++pass) {
      Gate hasDrawn;
      replicas.backward([&](torch::nn::SequentialImpl& replica, int index) {
        if (index != first) hasDrawn.wait();
        const at::Tensor output = replica.forward(at::ones({64, 1}));
        if (index == first) hasDrawn.open();
        masks[static_cast<size_t>(2 * pass + index)] = output.detach() != 0;
        return output.sum();
      });
    }
    return masks;
  };
  const std::vector<at::Tensor> masks = run(1, 0);
  expectSame(run(1, 1), masks);
  for (size_t i = 1; i < masks.size(); ++i)
    for (size_t j = 0; j < i; ++j) EXPECT_FALSE(at::equal(masks[i], masks[j])) << i << j;
  EXPECT_FALSE(at::equal(run(2, 0)[0], masks[0]));
}

TEST(ReplicaSet, GivesAllRandomOperatorsTheGeneratorOfTheThread) {
  const at::Tensor half = at::full({32}, 0.5);
  auto drawAll = [&] {
    return std::vector<at::Tensor>{at::rand({32}),
                                   at::randn({32}),
                                   at::randint(100, {32}),
                                   at::randperm(32),
                                   at::bernoulli(half),
                                   at::multinomial(half, 8),
                                   at::normal(0.0, half),
                                   at::rand_like(half),
                                   at::poisson(half),
                                   at::empty({32}).exponential_(),
                                   at::dropout(half, 0.5, true),
                                   std::get<0>(at::native_dropout(half, 0.5, true)),
                                   at::rrelu(-half, 0.1, 0.9, true)};
  };
  std::vector<at::Tensor> once, again;
  {
    const ddp::ThreadGenerator random(5);
    once = drawAll();
  }
  torch::manual_seed(1);
  const at::Tensor next = at::rand({4});
  torch::manual_seed(1);
  {
    const ddp::ThreadGenerator random(5);
    again = drawAll();
    const ddp::ThreadGenerator another(6);
    EXPECT_FALSE(at::equal(drawAll()[0], once[0]));
  }
  expectSame(again, once);
  EXPECT_TRUE(at::equal(at::rand({4}), next));  // the other generator has not moved
}

// A clone draws first values for its layers.
TEST(ReplicaSet, IsMadeWithoutNumbersOfTheProgram) {
  torch::nn::Linear net(4, 4);
  torch::manual_seed(1);
  const at::Tensor next = at::rand({4});
  torch::manual_seed(1);
  const ReplicaSet<torch::nn::Linear> replicas(net, {.replicas = 2});
  EXPECT_TRUE(at::equal(at::rand({4}), next));
}

TEST(ReplicaSet, SharesTheIntraOpThreads) {
  TiedNet net;
  auto countInNewThread = [] {
    int count = 0;
    std::thread([&] { count = at::get_num_threads(); }).join();
    return count;
  };
  const int here = at::get_num_threads(), inNewThread = countInNewThread();
  std::set<std::thread::id> threads;
  Mutex mutex;
  auto countIn = [&](ReplicaSet<TiedNet>& replicas) {
    std::set<int> counts;
    for (int pass = 0; pass < 2; ++pass)
      replicas.backward([&](TiedNetImpl& replica, int index) {
        at::Tensor loss = lossOfShard(replica, index, 0);
        MutexLock lock(mutex);
        counts.insert(at::get_num_threads());
        threads.insert(std::this_thread::get_id());
        return loss;
      });
    return counts;
  };
  ReplicaSet<TiedNet> some(net, {.replicas = 3, .intraOpThreads = inNewThread + 2});
  EXPECT_EQ(countIn(some), std::set<int>{inNewThread + 2});
  EXPECT_EQ(countInNewThread(), inNewThread);
  EXPECT_EQ(threads.size(), 3U);
  EXPECT_FALSE(threads.contains(std::this_thread::get_id()));
  ReplicaSet<TiedNet> many(net, {.replicas = here + 1});
  EXPECT_EQ(countIn(many), std::set<int>{1});
  EXPECT_EQ(at::get_num_threads(), here);
  EXPECT_EQ(countInNewThread(), inNewThread);
}

// Each constructs sets while others do.
TEST(ReplicaSet, LeavesTheThreadsOfLaterThreadsAlone) {
  auto countInNewThread = [] {
    int count = 0;
    std::thread([&] { count = at::get_num_threads(); }).join();
    return count;
  };
  const int before = countInNewThread();
  std::vector<std::thread> makers;
  for (int maker = 0; maker < 4; ++maker)
    makers.emplace_back([maker, before] {
      TiedNet net;
      for (int i = 0; i < 50; ++i) {
        const ReplicaSet<TiedNet> set(net, {.replicas = 2, .intraOpThreads = before + 1 + maker});
      }
    });
  for (std::thread& maker : makers) maker.join();
  EXPECT_EQ(countInNewThread(), before);
}

std::atomic<int> endedThreads = 0;

TEST(ReplicaSet, EndsItsThreads) {
  TiedNet net;
  endedThreads = 0;
  {
    ReplicaSet<TiedNet> replicas(net, {.replicas = 3});
    replicas.backward([&](TiedNetImpl& replica, int index) {
      struct AtEnd {
        ~AtEnd() { ++endedThreads; }
      };
      thread_local AtEnd atEnd;
      static_cast<void>(&atEnd);
      return lossOfShard(replica, index, 0);
    });
    EXPECT_EQ(endedThreads, 0);
  }
  EXPECT_EQ(endedThreads, 3);
}

// Registers its own tensors by its constructor, so that a clone has those of the module.
struct BaseImpl : torch::nn::Cloneable<BaseImpl> {
  void reset() override { weight = register_parameter("weight", at::ones({2})); }
  at::Tensor weight;
};
struct DerivedImpl : BaseImpl {};

// Its clone ties what the module does not.
struct UntiedImpl : torch::nn::Cloneable<UntiedImpl> {
  UntiedImpl() {
    register_parameter("first", at::ones({2}));
    register_parameter("second", at::ones({2}));
  }
  void reset() override { register_parameter("second", register_parameter("first", at::ones({2}))); }
};

// Its clone is what `how` says, with one weight and one buffer.
struct OddImpl : torch::nn::Module {
  explicit OddImpl(std::string how = "") : how(std::move(how)) {
    register_parameter("weight", at::ones({2}));
    register_buffer("table", at::ones({2}));
  }
  std::shared_ptr<torch::nn::Module> clone(const std::optional<at::Device>&) const override {
    if (how == "none") return nullptr;
    if (how == "copy") return std::make_shared<OddImpl>(*this);
    if (how == "cached") return cached;
    auto odd = std::make_shared<OddImpl>();
    if (how == "larger") odd->register_parameter("more", at::ones({2}));
    if (how == "buffer") odd->named_buffers()["table"].set_data(at::ones({3}));
    if (how == "submodule") odd->register_module("more", std::make_shared<OddImpl>());
    return odd;
  }
  std::string how;
  std::shared_ptr<OddImpl> cached;
};

TEST(ReplicaSet, RefusesClonesThatShareOrDiffer) {
  for (const auto& [how, message] :
       std::map<std::string, std::string>{{"none", "returned nothing"},
                                          {"copy", "of a clone is that of the module or of another clone"},
                                          {"cached", "of a clone is that of the module or of another clone"},
                                          {"larger", "2 parameters where its module has 1"},
                                          {"buffer", "buffer 'table' is another one in the clone"},
                                          {"submodule", "different numbers of submodules"}}) {
    auto odd = std::make_shared<OddImpl>(how);
    odd->cached = std::make_shared<OddImpl>();
    EXPECT_TRUE(contains(messageOf<ArgumentError>([&] { ReplicaSet<OddImpl>{odd, {.replicas = 2}}; }), message)) << how;
  }
  ReplicaSet<OddImpl>{std::make_shared<OddImpl>(), {.replicas = 2}};
}

TEST(ReplicaSet, RefusesModulesThatHaveNoRightClone) {
  auto refusalOf = [](auto module) {
    using M = typename decltype(module)::element_type;
    return messageOf<ArgumentError>([&] { ReplicaSet<M>{module, {.replicas = 2}}; });
  };
  EXPECT_TRUE(contains(refusalOf(std::make_shared<NetImpl>(0)), "clone() has not been implemented for"));
  auto derived = std::make_shared<DerivedImpl>();
  derived->reset();
  EXPECT_TRUE(contains(refusalOf(derived), "DerivedImpl is a "));
  EXPECT_TRUE(contains(refusalOf(std::make_shared<UntiedImpl>()), "'second' is one tensor with another in the clone"));
  EXPECT_TRUE(contains(refusalOf(std::shared_ptr<NetImpl>()), "no module"));
  TiedNet late;
  late->register_parameter("late", at::ones({2}));
  EXPECT_TRUE(contains(refusalOf(late.ptr()), "register_parameter() inside reset()"));
}

TEST(ReplicaSet, RefusesOptionsThatCannotBe) {
  TiedNet net;
  for (const ReplicaSetOptions& wrong :
       {ReplicaSetOptions{.replicas = 0}, ReplicaSetOptions{.replicas = 257}, ReplicaSetOptions{.intraOpThreads = -1},
        ReplicaSetOptions{.divisor = Divisor::kActiveRanks}})
    EXPECT_THROW(ReplicaSet<TiedNet>(net, wrong), ArgumentError);
}

TEST(ReplicaSet, RefusesLossesThatCannotBe) {
  TiedNet net;
  const std::vector<at::Tensor> buffers = copiesOf(net->buffers());
  auto refusalOf = [&](auto kind, Divisor divisor, const std::function<ReplicaLoss(const at::Tensor&)>& change) {
    ReplicaSet<TiedNet> replicas(net, {.replicas = 2, .divisor = divisor});
    auto backward = [&] {
      replicas.backward([&](TiedNetImpl& replica, int index) { return change(lossOfShard(replica, index, 0)); });
    };
    return messageOf<typename decltype(kind)::type>(backward);
  };
  constexpr std::type_identity<StateError> kState;
  constexpr std::type_identity<ArgumentError> kArgument;
  using Loss = const at::Tensor&;
  EXPECT_TRUE(contains(refusalOf(kState, Divisor::kSum, [](Loss loss) { return loss.detach(); }), "no gradient"));
  EXPECT_TRUE(contains(refusalOf(kState, Divisor::kSum, [](Loss loss) { return ReplicaLoss(loss, 1); }), "a weight"));
  EXPECT_TRUE(contains(refusalOf(kState, Divisor::kWeights, [](Loss loss) { return loss; }), "has no weight"));
  EXPECT_TRUE(contains(refusalOf(kArgument, Divisor::kWeights, [](Loss loss) { return ReplicaLoss(loss, -1); }), "-1"));
  EXPECT_TRUE(contains(refusalOf(kState, Divisor::kWeights, [](Loss loss) { return ReplicaLoss(loss, 0); }),
                       "weights of the replicas add up to 0"));
  expectSame(copiesOf(net->buffers()), buffers);
  for (const at::Tensor& gradient : gradientsOf(net)) EXPECT_FALSE(gradient.defined());
}

TEST(ReplicaSet, RefusesRanksWithOtherNumbersOfReplicas) {
  TensorJob job(ranks(2));
  for (const Divisor divisor : {Divisor::kWorldSize, Divisor::kWeights, Divisor::kSum})
    for (const Buffers buffers : {Buffers::kOnce, Buffers::kAverage}) {
      job.onAll([&](Worker& worker) {
        TiedNet net;
        DistributedDataParallel<TiedNet> ddp(net, ProcessGroup::make(worker, job.names()),
                                             {.buffers = buffers, .divisor = divisor});
        auto construct = [&] { ReplicaSet<TiedNet>{ddp, {.replicas = 1 + worker.self().rank}}; };
        const bool mayDiffer = divisor == Divisor::kWeights || (divisor == Divisor::kSum && buffers == Buffers::kOnce);
        if (mayDiffer) return construct();
        EXPECT_TRUE(contains(messageOf<ArgumentError>(construct),
                             "rank 0 has ReplicaSetOptions::replicas 1; rank 1 has ReplicaSetOptions::replicas 2"));
      });
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

TEST(ReplicaSet, ComputesWithoutGuardsOfTheCaller) {
  TiedNet net, alone;
  ReplicaSet<TiedNet> replicas(net, {.replicas = 2});
  const at::NoGradGuard noGrad;
  replicas.backward([&](TiedNetImpl& replica, int index) { return lossOfShard(replica, index, 0); });
  const at::AutoGradMode grad(true);
  for (int shard = 0; shard < 2; ++shard) lossOfShard(*alone, shard, 0).div(2).backward();
  expectClose(gradientsOf(net), gradientsOf(alone));
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

TEST(ReplicaSet, KeepsTheClassOfAnErrorOfTheFunction) {
  TiedNet net;
  ReplicaSet<TiedNet> replicas(net, {.replicas = 2});
  const std::string message = messageOf<ArgumentError>([&] {
    replicas.backward([](TiedNetImpl& replica, int index) {
      if (index == 1) raise(invalidArgument("no such sample"));
      return lossOfShard(replica, index, 0);
    });
  });
  EXPECT_TRUE(contains(message, "replica 1 of 2: no such sample"));
}

// A constant that is not a number: equal bits are no change.
TEST(ReplicaSet, DoesNotWriteABufferThatStaysTheSame) {
  TiedNet net;
  net->constant.fill_(std::numeric_limits<double>::quiet_NaN());
  ReplicaSet<TiedNet> replicas(net, {.replicas = 2, .buffers = Buffers::kAverage});
  const auto version = net->constant._version();
  replicas.backward([](TiedNetImpl& replica, int index) { return lossOfShard(replica, index, 0); });
  EXPECT_EQ(net->constant._version(), version);
}

TEST(ReplicaSet, RefusesASyncBatchNorm) {
  TensorJob job(ranks(1));
  job.onAll([&](Worker& worker) {
    SyncBatchNorm norm(3, worker, ProcessGroup::make(worker, job.names()));
    EXPECT_TRUE(contains(messageOf<ArgumentError>([&] { ReplicaSet<SyncBatchNorm>{norm}; }), "SyncBatchNorm"));
  });
}

}  // namespace
}  // namespace treadle::test::replica_set_test

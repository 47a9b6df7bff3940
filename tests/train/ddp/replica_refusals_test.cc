// What several replicas in one process cannot do is refused, and what goes wrong in a replica changes nothing.

#include "treadle/train/ddp/replica_set.h"

#include <torch/nn/modules/embedding.h>

#include <functional>
#include <set>
#include <stdexcept>
#include <type_traits>

#include "tests/support/expect_error.h"
#include "tests/support/gate.h"
#include "tests/train/ddp/tied_net.h"

namespace treadle::test::replica_refusals_test {
namespace {

using namespace tied_net;

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

// Each is finite.
TEST(ReplicaSet, RefusesWeightsWhoseSumIsInfinite) {
  auto expectRefused = [](ReplicaSet<TiedNet>& replicas, const TiedNet& net) {
    net->bias.mutable_grad() = at::ones({5}, at::kDouble);
    const std::vector<at::Tensor> gradients = gradientsOf(net), buffers = copiesOf(net->buffers());
    auto backward = [&] {
      replicas.backward(
          [](TiedNetImpl& replica, int index) { return ReplicaLoss(lossOfShard(replica, index, 0), 1e308); });
    };
    EXPECT_TRUE(contains(messageOf<StateError>(backward), "the weights of the replicas add up to inf"));
    expectSame(gradientsOf(net), gradients);
    expectSame(copiesOf(net->buffers()), buffers);
  };
  TiedNet plain;
  ReplicaSet<TiedNet> withoutGroup(plain, {.replicas = 2, .divisor = Divisor::kWeights});
  expectRefused(withoutGroup, plain);
  TensorJob job(ranks(1));
  job.onAll([&](Worker& worker) {
    TiedNet net;
    DdpOptions options = smallBuckets();
    options.divisor = Divisor::kWeights;
    DistributedDataParallel<TiedNet> ddp(net, ProcessGroup::make(worker, job.names()), options);
    ReplicaSet<TiedNet> replicas(ddp, {.replicas = 2});
    expectRefused(replicas, net);
    EXPECT_EQ(ddp.stats().averagedPasses, 0U);
  });
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

TEST(ReplicaSet, RefusesOptionsThatCannotBe) {
  TiedNet net;
  for (const ReplicaSetOptions& wrong :
       {ReplicaSetOptions{.replicas = 0}, ReplicaSetOptions{.replicas = 257}, ReplicaSetOptions{.intraOpThreads = -1},
        ReplicaSetOptions{.divisor = Divisor::kActiveRanks}})
    EXPECT_THROW(ReplicaSet<TiedNet>(net, wrong), ArgumentError);
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

TEST(ReplicaSet, RefusesEmbeddingsThatNormalizeTheirWeight) {
  const torch::nn::Embedding words(torch::nn::EmbeddingOptions(4, 2).max_norm(1));
  EXPECT_TRUE(contains(messageOf<ArgumentError>([&] { ReplicaSet<torch::nn::Embedding>{words}; }), "max_norm"));
  const torch::nn::EmbeddingBag bag(torch::nn::EmbeddingBagOptions(4, 2).max_norm(1));
  EXPECT_TRUE(contains(messageOf<ArgumentError>([&] { ReplicaSet<torch::nn::EmbeddingBag>{bag}; }), "max_norm"));
}

TEST(ReplicaSet, RefusesASyncBatchNorm) {
  TensorJob job(ranks(1));
  job.onAll([&](Worker& worker) {
    SyncBatchNorm norm(3, worker, ProcessGroup::make(worker, job.names()));
    EXPECT_TRUE(contains(messageOf<ArgumentError>([&] { ReplicaSet<SyncBatchNorm>{norm}; }), "SyncBatchNorm"));
  });
}

}  // namespace
}  // namespace treadle::test::replica_refusals_test

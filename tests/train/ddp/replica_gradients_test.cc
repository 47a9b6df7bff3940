// The gradients of several replicas in one process are added in their order, and divided as the divisor says.

#include "treadle/train/ddp/replica_set.h"

#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include "tests/support/gate.h"
#include "tests/train/ddp/tied_net.h"

namespace treadle::test::replica_gradients_test {
namespace {

using namespace tied_net;

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

TEST(ReplicaSet, IgnoresTheWeightOfAReplicaWithoutABatch) {
  TiedNet net, alone;
  ReplicaSet<TiedNet> replicas(net, {.replicas = 2, .divisor = Divisor::kWeights});
  replicas.backward([](TiedNetImpl& replica, int index) {
    return index == 0 ? ReplicaLoss(lossOfShard(replica, 0, 0), 4) : ReplicaLoss(at::Tensor(), 100);
  });
  lossOfShard(*alone, 0, 0).div(4).backward();
  expectClose(gradientsOf(net), gradientsOf(alone));
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

}  // namespace
}  // namespace treadle::test::replica_gradients_test

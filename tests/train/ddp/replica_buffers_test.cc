// The buffers of several replicas in one process become those of the module as Buffers says.

#include "treadle/train/ddp/replica_set.h"

#include <torch/nn/modules/batchnorm.h>

#include <limits>

#include "tests/train/ddp/tied_net.h"

namespace treadle::test::replica_buffers_test {
namespace {

using namespace tied_net;

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

// Those of rank 0's first replica: in each pass, one more has no batch, and the next one counts.
TEST(ReplicaSet, TakesBuffersOfTheFirstReplicaOfAllRanks) {
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    torch::nn::BatchNorm1d net(3), expected(3);
    for (torch::nn::BatchNorm1d one : {net, expected}) one->to(at::kDouble);
    DistributedDataParallel<torch::nn::BatchNorm1d> ddp(net, ProcessGroup::make(worker, job.names()),
                                                        {.buffers = Buffers::kFromRank0});
    ReplicaSet<torch::nn::BatchNorm1d> replicas(ddp, {.replicas = 2});
    auto inputOfShard = [](int shard) { return random({2 + shard, 3}, static_cast<uint64_t>(shard)); };
    for (int first = 0; first < kShards; ++first) {
      replicas.backward([&](torch::nn::BatchNorm1dImpl& replica, int index) {
        const int shard = 2 * worker.self().rank + index;
        return shard < first ? at::Tensor() : replica.forward(inputOfShard(shard)).square().sum();
      });
      expected->forward(inputOfShard(first));
      expectClose(copiesOf(net->buffers()), copiesOf(expected->buffers()));
      ddp.verifyReplicas();
    }
  });
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

}  // namespace
}  // namespace treadle::test::replica_buffers_test

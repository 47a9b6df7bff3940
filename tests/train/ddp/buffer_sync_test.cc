// Buffers stay equal on all ranks during training, if so asked, without a message in forward.

#include <torch/nn/modules/batchnorm.h>

#include <limits>

#include "tests/support/expect_error.h"
#include "tests/train/ddp/net.h"

namespace treadle::test::buffer_sync_test {
namespace {

using namespace ddp_test;

// A layer whose output is normalized, with running statistics.
struct NormedImpl : torch::nn::Module {
  NormedImpl() {
    weight = register_parameter("weight", random({5, 3}, 1));
    norm = register_module("norm", torch::nn::BatchNorm1d(3));
    norm->to(at::kDouble);
    norm->num_batches_tracked.set_data(at::zeros({}, at::kLong));  // an integer again
  }
  at::Tensor forward(const at::Tensor& input) { return norm(input.mm(weight)); }
  at::Tensor loss(int rank, int step) { return forward(inputOf(rank, step)).square().sum() * (1 + rank); }
  at::Tensor weight;
  torch::nn::BatchNorm1d norm{nullptr};
};
TORCH_MODULE(Normed);

DdpOptions with(Buffers buffers) { return {.buckets = {.firstBytes = 64, .bytes = 300}, .buffers = buffers}; }

// The replicas of a job in one process. After each averaged pass their statistics become the mean.
class Simulated {
 public:
  explicit Simulated(int size) {
    for (int rank = 0; rank < size; ++rank) replicas_.emplace_back();
  }
  void forward(int step) {
    at::NoGradGuard noGrad;
    for (size_t rank = 0; rank < replicas_.size(); ++rank)
      replicas_[rank]->forward(inputOf(static_cast<int>(rank), step));
  }
  void average() {
    for (const bool isVariance : {false, true}) {
      std::vector<at::Tensor> ofRanks;
      for (Normed& replica : replicas_)
        ofRanks.push_back(isVariance ? replica->norm->running_var : replica->norm->running_mean);
      const at::Tensor mean = at::stack(ofRanks).mean(0);
      for (at::Tensor& one : ofRanks) one.copy_(mean);
    }
  }
  void expectOn(int rank, Normed& actual) {
    const torch::nn::BatchNorm1d& norm = replicas_[static_cast<size_t>(rank)]->norm;
    EXPECT_TRUE(close(actual->norm->running_mean, norm->running_mean, 1e-12));
    EXPECT_TRUE(close(actual->norm->running_var, norm->running_var, 1e-12));
  }

 private:
  std::vector<Normed> replicas_;
};

class BufferSync : public ::testing::TestWithParam<bool> {
 protected:
  // In a local or a distributed pass.
  void backward(Worker& worker, const at::Tensor& loss) {
    if (!GetParam()) return loss.backward();
    AutogradContext(worker).backward({loss});
  }
};

TEST_P(BufferSync, AveragesRunningStatisticsOfAllRanks) {
  for (const int size : {1, 2, 3}) {
    TensorJob job(ranks(size));
    job.onAll([&](Worker& worker) {
      const int rank = worker.self().rank;
      Normed net;
      DistributedDataParallel<Normed> ddp(net, ProcessGroup::make(worker, job.names()), with(Buffers::kAverage));
      Simulated expected(size);
      for (int step = 0; step < 4; ++step) {
        backward(worker, ddp->loss(rank, step));
        expected.forward(step);
        expected.average();
        expected.expectOn(rank, net);
        EXPECT_EQ(net->norm->num_batches_tracked.item<int64_t>(), step + 1);
        ddp.verifyReplicas();  // the same bits, buffers too
      }
    });
  }
}

// Passes under noSync update each rank's own statistics, and the next averaged pass exchanges what has become of them.
TEST_P(BufferSync, LeavesPassesUnderNoSyncAlone) {
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    const int rank = worker.self().rank;
    Normed net;
    DistributedDataParallel<Normed> ddp(net, ProcessGroup::make(worker, job.names()), with(Buffers::kAverage));
    Simulated expected(2);
    {
      auto unaveraged = ddp.noSync();
      backward(worker, ddp->loss(rank, 0));
    }
    expected.forward(0);
    expected.expectOn(rank, net);
    backward(worker, ddp->loss(rank, 1));
    expected.forward(1);
    expected.average();
    expected.expectOn(rank, net);
  });
}

INSTANTIATE_TEST_SUITE_P(Passes, BufferSync, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "distributed" : "local"; });

// Rank 1 has seen more batches.
TEST(Buffers, OfRankZeroAreCopiedToAll) {
  TensorJob job(ranks(3));
  Normed rankZero;
  rankZero->forward(inputOf(0, 0));
  for (const Buffers mode : {Buffers::kFromRank0, Buffers::kAverage})
    job.onAll([&](Worker& worker) {
      const int rank = worker.self().rank;
      Normed net;
      DistributedDataParallel<Normed> ddp(net, ProcessGroup::make(worker, job.names()), with(mode));
      for (int more = 0; rank == 1 && more < 5; ++more) ddp.forward(inputOf(rank, 5));
      ddp->loss(rank, 0).backward();
      EXPECT_EQ(net->norm->num_batches_tracked.item<int64_t>(), 1);
      if (mode == Buffers::kAverage) return;
      EXPECT_TRUE(close(net->norm->running_mean, rankZero->norm->running_mean, 1e-12));
      ddp.verifyReplicas();
    });
}

// An operation that the other rank does not begin would not match those of the next pass.
TEST(Buffers, AreNotSentInForwardSoThatOneRankMayEvaluateAlone) {
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    const int rank = worker.self().rank;
    Normed net;
    DistributedDataParallel<Normed> ddp(net, ProcessGroup::make(worker, job.names()), with(Buffers::kAverage));
    for (int step = 0; step < 3; ++step) {
      ddp->loss(rank, step).backward();
      if (rank == 0) {
        at::NoGradGuard noGrad;
        net->eval();
        for (int test = 0; test < 3; ++test) ddp.forward(inputOf(7, test));
        net->train();
      }
    }
    ddp.verifyReplicas();
  });
}

// A buffer holds what was in it before, and the next pass exchanges it.
TEST(Buffers, OfAFailedPassStayTheRanksOwn) {
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    const int rank = worker.self().rank;
    Normed net;
    DistributedDataParallel<Normed> ddp(net, ProcessGroup::make(worker, job.names()), with(Buffers::kAverage));
    Simulated expected(2);
    const at::Tensor input = inputOf(rank, 0).requires_grad_();
    const at::Tensor loss = ddp.forward(rank == 1 ? Broken::apply(input) : input).square().sum();
    EXPECT_THROW(loss.backward(), std::exception);
    expected.forward(0);
    expected.expectOn(rank, net);
    net->zero_grad();
    ddp->loss(rank, 1).backward();
    expected.forward(1);
    expected.average();
    expected.expectOn(rank, net);
  });
}

// As a cache does that grows. Found before anything is sent, so the ranks stay in step.
TEST(Buffers, OfAnotherShapeAreRefusedByName) {
  TensorJob job(ranks(2));
  for (const Buffers mode : {Buffers::kFromRank0, Buffers::kAverage})
    job.onAll([&](Worker& worker) {
      const int rank = worker.self().rank;
      Normed net;
      DistributedDataParallel<Normed> ddp(net, ProcessGroup::make(worker, job.names()), with(mode));
      const at::Tensor mean = net->norm->running_mean.clone();
      const at::Tensor loss = ddp->loss(rank, 0);
      if (rank == 0) {
        net->norm->running_mean.set_data(at::zeros({5}, at::kDouble));
        const std::string why = messageOf<StateError>([&] { loss.backward(); });
        EXPECT_TRUE(contains(why, "buffer 'norm.running_mean' has become another tensor")) << why;
        net->norm->running_mean.set_data(mean);
      } else {
        EXPECT_THROW(loss.backward(), CancelledError);
      }
      net->zero_grad();
      ddp->loss(rank, 1).backward();
      ddp.verifyReplicas();
    });
}

struct MixedImpl : torch::nn::Module {
  explicit MixedImpl(int rank) {
    weight = register_parameter("weight", at::ones({2}, at::kDouble));
    half = register_buffer("half", at::full({3}, 1 + 2 * rank, at::kHalf));
    brain = register_buffer("brain", at::full({}, 1 + 2 * rank, at::kBFloat16));
    single = register_buffer("single", at::full({2, 2}, 1 + 2 * rank, at::kFloat));
    count = register_buffer("count", at::full({}, 10 + 5 * rank, at::kLong));
    flag = register_buffer("flag", at::full({2}, rank == 0, at::kBool));
    none = register_buffer("none", at::ones({0, 3}, at::kDouble));
    transposed = register_buffer("transposed", at::arange(6, at::kDouble).view({2, 3}).t() + rank);
    register_buffer("sameCount", count);
  }
  at::Tensor weight, half, brain, single, count, flag, none, transposed;
};
TORCH_MODULE(Mixed);

TEST(Buffers, OfAllDtypesAndShapesAreKeptEqual) {
  TensorJob job(ranks(2));
  for (const Buffers mode : {Buffers::kFromRank0, Buffers::kAverage})
    job.onAll([&](Worker& worker) {
      Mixed net(worker.self().rank);
      DdpOptions options = with(mode);
      options.start = StartCheck::kTrust;
      DistributedDataParallel<Mixed> ddp(net, ProcessGroup::make(worker, job.names()), options);
      net->weight.sum().backward();
      const double mean = mode == Buffers::kAverage ? 2 : 1, more = mode == Buffers::kAverage ? 0.5 : 0;
      EXPECT_TRUE(at::equal(net->half, at::full({3}, mean, at::kHalf)));
      EXPECT_TRUE(at::equal(net->brain, at::full({}, mean, at::kBFloat16)));
      EXPECT_TRUE(at::equal(net->single, at::full({2, 2}, mean, at::kFloat)));
      EXPECT_EQ(net->count.item<double>(), 10);
      EXPECT_TRUE(net->flag.all().item<bool>());
      EXPECT_TRUE(at::equal(net->transposed, at::arange(6, at::kDouble).view({2, 3}).t() + more));
      ddp.verifyReplicas();
    });
}

// Rank 0 holds a NaN, which must not spread: its weight is 0, or it has no batch.
TEST(Buffers, AreWeightedAsGradientsAre) {
  TensorJob job(ranks(3));
  for (const Divisor divisor : {Divisor::kWeights, Divisor::kActiveRanks})
    job.onAll([&](Worker& worker) {
      const int rank = worker.self().rank;
      Mixed net(rank);
      if (rank == 0) net->single.fill_(std::numeric_limits<float>::quiet_NaN());
      DdpOptions options = with(Buffers::kAverage);
      options.start = StartCheck::kTrust;
      options.divisor = divisor;
      DistributedDataParallel<Mixed> ddp(net, ProcessGroup::make(worker, job.names()), options);
      if (divisor == Divisor::kWeights) {
        ddp.setWeight(std::vector<double>{0, 3, 1}[static_cast<size_t>(rank)]);
        net->weight.sum().backward();
        EXPECT_TRUE(at::equal(net->single, at::full({2, 2}, 3.5, at::kFloat)));  // of 3 and 5
        EXPECT_EQ(net->count.item<double>(), 10);
      } else {
        rank == 0 ? ddp.synchronize() : net->weight.sum().backward();
        EXPECT_TRUE(close(net->single, at::full({2, 2}, 4, at::kFloat), 1e-6));
        EXPECT_EQ(net->count.item<double>(), 15) << "of the lowest rank with a batch";
      }
      ddp.verifyReplicas();
    });
}

// libtorch would refuse the second backward if the buffer had been written since.
TEST(Buffers, ThatDoNotChangeStayValidForGraphsThatSavedThem) {
  TensorJob job(ranks(3));
  for (const Buffers mode : {Buffers::kFromRank0, Buffers::kAverage})
    job.onAll([&](Worker& worker) {
      Net net(0);
      DistributedDataParallel<Net> ddp(net, ProcessGroup::make(worker, job.names()), with(mode));
      const at::Tensor first = (net->last * net->offset).sum(), second = (net->last * net->offset).square().sum();
      const auto before = net->offset._version();
      first.backward();
      second.backward();
      EXPECT_EQ(net->offset._version(), before);
    });
}

TEST(Buffers, ThatAreNotDenseAreRefusedUnlessTheyAreTheRanksOwn) {
  struct Sparse : torch::nn::Module {
    Sparse() { register_buffer("table", at::ones({2, 2}).to_sparse()); }
  };
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    ProcessGroup group = ProcessGroup::make(worker, job.names());
    DdpOptions options = with(Buffers::kAverage);
    options.start = StartCheck::kTrust;
    auto construct = [&] { DistributedDataParallel<Sparse>(std::make_shared<Sparse>(), group, options); };
    EXPECT_TRUE(contains(messageOf<ArgumentError>(construct), "buffer 'table' cannot be kept equal"));
    options.buffers = Buffers::kOnce;
    construct();
  });
}

}  // namespace
}  // namespace treadle::test::buffer_sync_test

// A group that forces an algorithm: dense gradients are averaged by it, and all else by what can do it.

#include <torch/optim/sgd.h>

#include "tests/train/ddp/hooks.h"
#include "tests/train/ddp/tables.h"
#include "treadle/train/ddp/bucket_limits.h"

namespace treadle::test::forced_algorithm_test {
namespace {

using namespace ddp_test;
using group::Algorithm;

constexpr int kRanks = 3;

// Each can do all-reduces of any size, and none can both broadcast and gather.
class ForcedAlgorithm : public ::testing::TestWithParam<Algorithm> {
 protected:
  static GroupOptions forced() {
    return {.name = "forced", .smallBytes = 0, .chunkBytes = 64, .algorithm = GetParam()};
  }
};

TEST_P(ForcedAlgorithm, TrainsAsOneProcess) {
  TensorJob job(ranks(kRanks));
  job.onAll([&](Worker& worker) {
    const int rank = worker.self().rank;
    for (StartCheck start : {StartCheck::kBroadcast, StartCheck::kVerifyValues, StartCheck::kTrust}) {
      Net net(0), alone(0);
      const ProcessGroup group = ProcessGroup::make(worker, job.names(), forced());
      DistributedDataParallel<Net> ddp(
          net, group,
          {.buckets = {.firstBytes = 64, .bytes = 300},
           .start = start,
           .buffers = start == StartCheck::kTrust ? Buffers::kFromRank0 : Buffers::kAverage});
      torch::optim::SGD sgd(net->parameters(), 0.1), sgdAlone(alone->parameters(), 0.1);
      for (int step = 0; step < 3; ++step) {
        std::vector<at::Tensor> inputs;
        for (int of = 0; of < kRanks; ++of) inputs.push_back(inputOf(of, step));
        sgd.zero_grad();
        sgdAlone.zero_grad();
        ddp.forward(inputOf(rank, step), /*skip=*/false).square().mean().backward();
        alone->forward(at::cat(inputs), false).square().mean().backward();
        sgd.step();
        sgdAlone.step();
      }
      for (const auto& entry : net->named_parameters())
        EXPECT_TRUE(close(entry.value(), alone->named_parameters()[entry.key()])) << entry.key();
      EXPECT_FALSE(ddp.agreeToSkip(false));
      ddp.verifyReplicas();
      EXPECT_TRUE(ddp.rebind(ProcessGroup::make(worker, job.names(), forced())));
    }
  });
}

TEST_P(ForcedAlgorithm, AveragesSparseGradients) {
  using sparse_test::Replica;
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    Replica own(worker, 2, {}, forced());
    for (int step = 0; step < 3; ++step) {
      own.net->zero_grad();
      own.backward("ss", step);
      sparse_test::expectGradient(own.grad(), sparse_test::sumOfAll("ss", step) / 2, /*isSparse=*/true);
    }
  });
}

std::vector<std::shared_ptr<CommHook>> compressingHooks() {
  return {std::make_shared<TopKHook>(TopKOptions{.ratio = 0.1}),
          std::make_shared<PowerSgdHook>(PowerSgdOptions{.startAfter = 1})};
}

// Sums of two values have no order, so that the averages have the bits of those in a group that forces nothing.
TEST_P(ForcedAlgorithm, ServesHooks) {
  const Shapes shapes = {{12, 20}, {8, 30}, {5}};
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    const auto passes = [&](std::shared_ptr<CommHook> hook, GroupOptions options) {
      Weights weights(shapes);
      DistributedDataParallel<Weights> ddp(weights, ProcessGroup::make(worker, job.names(), std::move(options)),
                                           smallBucketsWith(std::move(hook)));
      std::vector<at::Tensor> averages;
      for (int step = 0; step < 3; ++step) {
        std::vector<at::Tensor> gradients;
        for (size_t i = 0; i < shapes.size(); ++i) {
          const size_t seed = 100 * static_cast<size_t>(step) + 10 * i + static_cast<size_t>(worker.self().rank);
          gradients.push_back(random(shapes[i], seed).to(at::kFloat));
        }
        for (at::Tensor& average : averageOf(*weights, gradients)) averages.push_back(std::move(average));
      }
      return averages;
    };
    for (size_t hook = 0; hook < compressingHooks().size(); ++hook) {
      const auto byIt = passes(compressingHooks()[hook], forced()), byAny = passes(compressingHooks()[hook], {});
      for (size_t i = 0; i < byIt.size(); ++i) EXPECT_TRUE(haveEqualBits(byIt[i], byAny[i])) << hook << " " << i;
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Algorithms, ForcedAlgorithm,
                         ::testing::Values(Algorithm::kRoot, Algorithm::kRing, Algorithm::kCirculant,
                                           Algorithm::kDirect),
                         [](const auto& info) { return std::string(group::nameOf(info.param)); });

// It does all-reduces of small data alone.
const GroupOptions kExchangesSmallData{.smallBytes = 64, .algorithm = Algorithm::kExchange};
constexpr size_t kWeights = 200;

// As many numbers, whose gradients are averaged in buckets that are small.
struct ExchangedWeights {
  explicit ExchangedWeights(const ProcessGroup& group)
      : ddp(weights, group, {.buckets = {.firstBytes = 64, .bytes = 64}}) {}

  Weights weights{Shapes(kWeights, {1})};
  DistributedDataParallel<Weights> ddp;
};

// It does all-reduces of small data alone: those of the averages are, and that of which gradients there are is not.
TEST(AlgorithmOfAverages, IsForThemAlone) {
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    ExchangedWeights exchanged(ProcessGroup::make(worker, job.names(), kExchangesSmallData));
    auto& [weights, ddp] = exchanged;
    const std::vector<at::Tensor> ones(kWeights, at::full({1}, worker.self().rank));
    for (const at::Tensor& average : averageOf(*weights, ones)) EXPECT_EQ(average.item<float>(), 0.5);
    EXPECT_FALSE(ddp.agreeToSkip(false));
  });
}

// It gathers, which a ring does not.
TEST(AlgorithmOfAverages, IsNotThatOfSyncBatchNorm) {
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    const ProcessGroup ring = ProcessGroup::make(worker, job.names(), {.algorithm = Algorithm::kRing});
    SyncBatchNorm norm(3, worker, ring);
    const at::Tensor output = norm->forward(at::full({2, 3}, static_cast<double>(worker.self().rank)));
    EXPECT_TRUE(close(output, at::full({2, 3}, worker.self().rank == 0 ? -1.0 : 1.0), 1e-4));
  });
}

// Each mean is cut as gradients are, also with what the optimizer keeps.
TEST(AlgorithmOfAverages, IsThatOfLocalSgd) {
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    ExchangedWeights exchanged(ProcessGroup::make(worker, job.names(), kExchangesSmallData));
    auto& [weights, ddp] = exchanged;
    torch::optim::SGD sgd(weights->parameters(), torch::optim::SGDOptions(1).momentum(0.5));
    ddp::LocalSgd local = ddp.localSgd({.period = 1, .startAfter = 0});
    local.averageState(sgd);
    for (at::Tensor& weight : weights->parameters()) weight.mutable_grad() = at::full({1}, worker.self().rank);
    const at::Tensor before = weights->parameters()[0].detach().clone();
    sgd.step();
    local.step();
    EXPECT_EQ((before - weights->parameters()[0].detach()).item<float>(), 0.5);
    local.finish();
  });
}

TEST(AlgorithmOfAverages, IsRefusedByLocalSgdWhereItCannotDoThem) {
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    Net net(0);
    DistributedDataParallel<Net> ddp(net, ProcessGroup::make(worker, job.names()));
    const ProcessGroup wide = ProcessGroup::make(worker, job.names(), {.algorithm = Algorithm::kHierarchical});
    EXPECT_TRUE(contains(messageOf<ArgumentError>([&] { (void)ddp.localSgd({.startAfter = 0, .group = wide}); }),
                         "cannot do allReduce (average)"));
    const Algorithm algorithm = worker.self().rank == 0 ? Algorithm::kRoot : Algorithm::kDirect;
    const ProcessGroup differing = ProcessGroup::make(worker, job.names(), {.algorithm = algorithm});
    EXPECT_TRUE(contains(messageOf<ArgumentError>([&] { (void)ddp.localSgd({.startAfter = 0, .group = differing}); }),
                         "GroupOptions::algorithm"));
    barrier(wide).wait();
    barrier(differing).wait();
    ddp::LocalSgd local = ddp.localSgd({});  // refusals leave nothing behind
    local.finish();
  });
}

// A first bucket may be larger than the others.
TEST(AlgorithmOfAverages, IsThatOfTheLargestBucketInItsOwnType) {
  TensorJob job(ranks(2));
  const ProcessGroup group =
      ProcessGroup::make(job[0], {"rank0", "rank1"}, {.smallBytes = 64 << 10, .algorithm = Algorithm::kExchange});
  const auto algorithmOf = [&](at::ScalarType type, int64_t elements, ddp::BucketLimits limits) {
    return ddp::algorithmOfAverages(group, {at::zeros({8}), at::zeros({elements}, type)}, limits);
  };
  const ddp::BucketLimits small{.firstBytes = 1024, .bytes = 1024};
  EXPECT_TRUE(algorithmOf(at::kFloat, 16 << 10, small).ok());
  EXPECT_FALSE(algorithmOf(at::kFloat, (16 << 10) + 1, small).ok()) << "a parameter is not cut";
  EXPECT_TRUE(algorithmOf(at::kBFloat16, 32 << 10, small).ok());
  EXPECT_FALSE(algorithmOf(at::kBFloat16, (32 << 10) + 1, small).ok());
  const auto manyWith = [&](ddp::BucketLimits limits) {
    return ddp::algorithmOfAverages(group, std::vector<at::Tensor>(100, at::zeros({1024})), limits);
  };
  EXPECT_TRUE(manyWith({.firstBytes = 64, .bytes = 64 << 10}).ok());
  EXPECT_FALSE(manyWith({.firstBytes = 64 << 10, .bytes = 65 << 10}).ok());
  EXPECT_FALSE(manyWith({.firstBytes = 65 << 10, .bytes = 64}).ok());
}

// Before any pass, and the group goes on.
TEST(AlgorithmOfAverages, IsRefusedWhereItCannotDoThem) {
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    Net net(0);
    for (const Algorithm algorithm : {Algorithm::kExchange, Algorithm::kHierarchical}) {
      const ProcessGroup group = ProcessGroup::make(worker, job.names(), {.smallBytes = 8, .algorithm = algorithm});
      EXPECT_TRUE(contains(messageOf<ArgumentError>([&] { DistributedDataParallel<Net> ddp(net, group); }),
                           "cannot do allReduce (average)"));
      barrier(group).wait();
    }
  });
}

TEST(AlgorithmOfAverages, IsTheSameOnAllRanks) {
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    Net net(0);
    const Algorithm algorithm = worker.self().rank == 0 ? Algorithm::kRoot : Algorithm::kDirect;
    const ProcessGroup group = ProcessGroup::make(worker, job.names(), {.algorithm = algorithm});
    const std::string why =
        messageOf<ArgumentError>([&] { DistributedDataParallel<Net> ddp(net, group, {.buckets = {.bytes = 4096}}); });
    for (const char* part : {"GroupOptions::algorithm", "root", "direct"}) EXPECT_TRUE(contains(why, part)) << why;
  });
}

}  // namespace
}  // namespace treadle::test::forced_algorithm_test

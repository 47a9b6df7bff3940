// Ranks of a DistributedDataParallel, each with a context of its own, clip by the norm of all gradients together.

#include <torch/optim/sgd.h>

#include <cmath>
#include <limits>

#include "tests/train/ddp/net.h"
#include "treadle/optim.h"

namespace treadle::test::ddp_clip_test {
namespace {

using namespace ddp_test;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

// A rank with a replica, a parameter of its own, and one pass made.
struct Rank {
  explicit Rank(Worker& worker, int size, double ownScale = 1)
      : number(worker.self().rank),
        group(ProcessGroup::make(worker, ranks(size))),
        ddp(net, group, smallBuckets()),
        own(at::ones({3}, at::kDouble).requires_grad_()),
        optimizer(makeOptimizer(worker)),
        context(worker) {
    at::Tensor loss = ddp.forward(inputOf(number, 0), false).square().mean() + ownLoss(own) * ownScale;
    context.backward({loss});
  }
  at::Tensor ownLoss(const at::Tensor& parameter) const {
    return (parameter * random({3}, 40U + static_cast<uint64_t>(number))).sum();
  }
  DistributedOptimizer makeOptimizer(Worker& worker) {
    std::vector<RRef<at::Tensor>> parameters = parameterRefs(worker, *net);
    parameters.push_back(worker.makeRRef(own));
    return DistributedOptimizer::make<torch::optim::SGD>(worker, parameters, torch::optim::SGDOptions(0.1));
  }
  std::vector<at::Tensor> gradients() {
    std::vector<at::Tensor> gradients;
    for (const at::Tensor& parameter : net->parameters()) gradients.push_back(context.gradient(parameter));
    gradients.push_back(context.gradient(own));
    return gradients;
  }
  void expectUnchanged(const std::vector<at::Tensor>& before) {
    const std::vector<at::Tensor> now = gradients();
    for (size_t i = 0; i < now.size(); ++i) EXPECT_TRUE(now[i].is_same(before[i]) || at::equal(now[i], before[i])) << i;
  }

  int number;
  Net net{0};
  ProcessGroup group;
  DistributedDataParallel<Net> ddp;
  at::Tensor own;
  DistributedOptimizer optimizer;
  AutogradContext context;
};

// The same as the list of all gradients: the averages once, and what each rank has of its own.
TEST(ClipOverRanks, CountsAveragesOnceAndScalesAllAlike) {
  for (int size : {1, 2, 3}) {
    TensorJob job(ranks(size));
    std::vector<double> norms(static_cast<size_t>(size));
    job.onAll([&](Worker& worker) {
      Rank rank(worker, size);
      const std::vector<at::Tensor> before = rank.gradients();
      double squares = 0;
      for (size_t i = 0; i + 1 < before.size(); ++i) squares += before[i].square().sum().item<double>();
      for (int other = 0; other < size; ++other)
        squares += random({3}, 40U + static_cast<uint64_t>(other)).square().sum().item<double>();
      const double norm = clipGradNorm(rank.optimizer, rank.context, rank.ddp, 0.5);
      norms[static_cast<size_t>(rank.number)] = norm;
      EXPECT_NEAR(norm, std::sqrt(squares), 1e-12 * norm);
      const std::vector<at::Tensor> now = rank.gradients();
      for (size_t i = 0; i < now.size(); ++i) EXPECT_TRUE(close(now[i], before[i] * (0.5 / (norm + 1e-6)), 1e-14)) << i;
    });
    for (double norm : norms) EXPECT_EQ(norm, norms[0]) << "equal bits";
  }
}

TEST(ClipOverRanks, ReplicasStayEqualBitByBit) {
  constexpr int kSize = 3;
  TensorJob job(ranks(kSize));
  std::vector<at::Tensor> trained(kSize);
  job.onAll([&](Worker& worker) {
    Rank rank(worker, kSize);
    for (int step = 1; step < 5; ++step) {
      AutogradContext context(worker);
      context.backward({rank.ddp.forward(inputOf(rank.number, step), false).square().mean() + rank.ownLoss(rank.own)});
      clipGradNorm(rank.optimizer, context, rank.ddp, 0.3);
      rank.optimizer.step(context);
    }
    trained[static_cast<size_t>(rank.number)] = torch::nn::utils::parameters_to_vector(rank.net->parameters()).detach();
  });
  for (const at::Tensor& parameters : trained) EXPECT_TRUE(at::equal(parameters, trained[0]));
}

TEST(ClipOverRanks, ANormThatIsNotFiniteOnOneRankLeavesAll) {
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    Rank rank(worker, 2, worker.self().rank == 1 ? kNaN : 1);
    const std::vector<at::Tensor> before = rank.gradients();
    EXPECT_TRUE(std::isnan(clipGradNorm(rank.optimizer, rank.context, rank.ddp, 0.5)));
    messageOf<StateError>(
        [&] { clipGradNorm(rank.optimizer, rank.context, rank.ddp, 0.5, {.errorIfNonFinite = true}); });
    EXPECT_TRUE(at::equal(rank.gradients()[0], before[0]));
  });
}

TEST(ClipOverRanks, ARankThatFailsIsNamedByTheOthersAndNothingChanges) {
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    Rank rank(worker, 2);
    const std::vector<at::Tensor> before = rank.gradients();
    if (rank.number == 1) {
      messageOf<ArgumentError>([&] { clipGradNorm(rank.optimizer, rank.context, rank.ddp, -1); });
    } else {
      const std::string why = messageOf<StateError>([&] { clipGradNorm(rank.optimizer, rank.context, rank.ddp, 0.5); });
      EXPECT_TRUE(contains(why, "rank 1"));
    }
    rank.expectUnchanged(before);
  });
}

TEST(ClipOverRanks, RanksThatClipOtherwiseAreRefusedOnAll) {
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    Rank rank(worker, 2);
    const std::vector<at::Tensor> before = rank.gradients();
    const double maxNorm = rank.number == 0 ? 0.5 : 0.25;
    const std::string why =
        messageOf<ArgumentError>([&] { clipGradNorm(rank.optimizer, rank.context, rank.ddp, maxNorm); });
    EXPECT_TRUE(contains(why, "rank 1") && contains(why, "0.25"));
    rank.expectUnchanged(before);
  });
}

// One rank would throw, and the other step with what is not finite.
TEST(ClipOverRanks, RanksThatDisagreeOnNormsThatAreNotFiniteAreRefused) {
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    Rank rank(worker, 2, worker.self().rank == 1 ? kNaN : 1);
    const ClipOptions options = {.errorIfNonFinite = rank.number == 1};
    const std::string why =
        messageOf<ArgumentError>([&] { clipGradNorm(rank.optimizer, rank.context, rank.ddp, 0.5, options); });
    EXPECT_TRUE(contains(why, "errorIfNonFinite") && contains(why, "rank 1")) << why;
  });
}

// After a plain backward the local norm is that of one process on the whole batch.
TEST(ClipOverRanks, AfterAnAveragedPassTheLocalNormIsTheGlobalOne) {
  TensorJob job(ranks(3));
  Net alone(0);
  at::Tensor loss = at::zeros({}, at::kDouble);
  for (int rank = 0; rank < 3; ++rank) loss = loss + alone->forward(inputOf(rank, 0), false).square().mean() / 3;
  loss.backward();
  const double expected = clipGradNorm(*alone, 0.5);
  std::vector<double> norms(3);
  job.onAll([&](Worker& worker) {
    Net net(0);
    DistributedDataParallel<Net> ddp(net, ProcessGroup::make(worker, job.names()), smallBuckets());
    ddp.forward(inputOf(worker.self().rank, 0), false).square().mean().backward();
    norms[static_cast<size_t>(worker.self().rank)] = clipGradNorm(*ddp, 0.5);
    for (const auto& entry : alone->named_parameters())
      EXPECT_TRUE(close(net->named_parameters()[entry.key()].grad(), entry.value().grad(), 1e-12)) << entry.key();
  });
  for (double norm : norms) {
    EXPECT_NEAR(norm, expected, 1e-12 * expected);
    EXPECT_EQ(norm, norms[0]) << "equal bits";
  }
}

}  // namespace
}  // namespace treadle::test::ddp_clip_test

// Parameters that no rank uses keep what they have, and are not sent if the program says that they will never be used.

#include <torch/optim/sgd.h>

#include <optional>

#include "tests/support/expect_error.h"
#include "tests/support/seeds.h"
#include "tests/train/ddp/net.h"
#include "treadle/tensor/collective/collectives.h"

namespace treadle::test::unused_parameters_test {
namespace {

using namespace ddp_test;

constexpr int kBranches = 6, kNeverUsed = 2, kSteps = 6;

// A chain of layers, of which each pass takes some.
struct BranchesImpl : torch::nn::Module {
  BranchesImpl() {
    for (int branch = 0; branch < kBranches; ++branch)
      branches.push_back(
          register_parameter("branch" + std::to_string(branch), random({5, 5}, static_cast<uint64_t>(branch))));
    head = register_parameter("head", random({5, 3}, 99));
  }
  at::Tensor forward(const at::Tensor& input, uint64_t taken) {
    at::Tensor hidden = input;
    for (size_t branch = 0; branch < branches.size(); ++branch)
      if ((taken >> branch) & 1) hidden = at::tanh(hidden.mm(branches[branch]));
    return hidden.mm(head);
  }
  std::vector<at::Tensor> branches;
  at::Tensor head;
};
TORCH_MODULE(Branches);

// By step and rank. The last branches are never taken; all others are taken by a rank in the first step.
std::vector<std::vector<uint64_t>> takenBranches(int size) {
  Random random(seedOfRun());
  constexpr uint64_t kAll = (uint64_t{1} << (kBranches - kNeverUsed)) - 1;
  std::vector<std::vector<uint64_t>> taken(kSteps);
  for (auto& ofRanks : taken)
    for (int rank = 0; rank < size; ++rank) ofRanks.push_back(random() & random() & kAll);
  taken.front().back() = kAll;
  return taken;
}

// With momentum and decay a gradient of zero is not the same as none.
torch::optim::SGDOptions sgd() { return torch::optim::SGDOptions(0.1).momentum(0.9).weight_decay(0.1); }

class UnusedParameters : public ::testing::TestWithParam<std::tuple<treadle::UnusedParameters, int>> {};

TEST_P(UnusedParameters, OfRandomBranchesTrainAsInOneProcess) {
  const auto [mode, size] = GetParam();
  const auto taken = takenBranches(size);
  auto lossOf = [&](Branches& net, int rank, int step) {
    return net->forward(inputOf(rank, step), taken[static_cast<size_t>(step)][static_cast<size_t>(rank)])
        .square()
        .mean();
  };
  Branches alone;
  torch::optim::SGD optimizerAlone(alone->parameters(), sgd());
  for (int step = 0; step < kSteps; ++step) {
    optimizerAlone.zero_grad();
    for (int rank = 0; rank < size; ++rank) lossOf(alone, rank, step).div(size).backward();
    optimizerAlone.step();
  }
  TensorJob job(ranks(size));
  DdpOptions options = smallBuckets();
  options.unusedParameters = mode;
  job.onAll([&](Worker& worker) {
    Branches net;
    DistributedDataParallel<Branches> ddp(net, ProcessGroup::make(worker, job.names()), options);
    torch::optim::SGD optimizer(net->parameters(), sgd());
    for (int step = 0; step < kSteps; ++step) {
      optimizer.zero_grad();
      lossOf(net, worker.self().rank, step).backward();
      optimizer.step();
    }
    for (const auto& entry : alone->named_parameters())
      EXPECT_TRUE(close(net->named_parameters()[entry.key()], entry.value())) << entry.key();
    ddp.verifyReplicas();
  });
}

INSTANTIATE_TEST_SUITE_P(Modes, UnusedParameters,
                         ::testing::Combine(::testing::Values(treadle::UnusedParameters::kPerPass,
                                                              treadle::UnusedParameters::kStatic),
                                            ::testing::Values(1, 2, 3)),
                         [](const auto& info) {
                           return std::string(ddp::nameOf(std::get<0>(info.param))) + "On" +
                                  std::to_string(std::get<1>(info.param));
                         });

DdpOptions staticUse() {
  DdpOptions options = smallBuckets();
  options.unusedParameters = treadle::UnusedParameters::kStatic;
  return options;
}

// Rank 1 does by hand what a replica does; another operation would not match.
TEST(StaticUse, SendsNothingOfParametersThatNoRankUsedInTheFirstPass) {
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    ProcessGroup group = ProcessGroup::make(worker, job.names());
    Net net(0);
    if (worker.self().rank == 0) {
      DistributedDataParallel<Net> ddp(net, group, staticUse());
      for (int step = 0; step < 3; ++step) ddp.forward(inputOf(0, step), true).square().mean().backward();
      EXPECT_FALSE(net->skipped.grad().defined());
    } else {
      ddp::startReplicas(*net, group, staticUse());
      answerPass(group, net->parameters(), staticUse());
      constexpr size_t kSkipped = 2;
      ASSERT_TRUE(net->parameters()[kSkipped].is_same(net->skipped));
      for (uint64_t averages = 1; averages < 3; ++averages)
        answerPassInOrder(group, net->parameters(), {3, 1, 0}, averages, staticUse());
    }
    barrier(group).wait();
  });
}

class StaticUse : public ::testing::TestWithParam<bool> {};

// On rank 1, in an averaged pass or in one under noSync before it.
TEST_P(StaticUse, AGradientOfAParameterThatIsNotSentFailsThePassOnAllRanks) {
  TensorJob job(ranks(3));
  Net alone(0);
  alone->forward(at::cat({inputOf(0, 3), inputOf(1, 3), inputOf(2, 3)}), true).square().mean().backward();
  job.onAll([&](Worker& worker) {
    const int rank = worker.self().rank;
    Net net(0);
    DistributedDataParallel<Net> ddp(net, ProcessGroup::make(worker, job.names()), staticUse());
    std::optional<AutogradContext> context;  // of the last passes
    auto renew = [&] {
      net->zero_grad();
      if (GetParam()) context.emplace(worker);
    };
    auto pass = [&](int step, bool skip) {
      const at::Tensor loss = ddp.forward(inputOf(rank, step), skip).square().mean();
      context ? context->backward({loss}) : loss.backward();
    };
    const std::string why = "parameter 'skipped' has got a gradient, and no rank had used it";
    renew();
    pass(0, true);
    renew();
    EXPECT_TRUE(contains(messageOf<StateError>([&] { pass(1, rank != 1); }), why));
    renew();
    {
      auto unaveraged = ddp.noSync();
      pass(2, rank != 1);
    }
    EXPECT_TRUE(contains(messageOf<StateError>([&] { pass(2, true); }), why));
    renew();
    pass(3, true);
    const at::Tensor gradient = context ? context->gradient(net->first) : net->first.grad();
    EXPECT_TRUE(close(gradient, alone->first.grad()));
  });
}

INSTANTIATE_TEST_SUITE_P(Passes, StaticUse, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "distributed" : "local"; });

}  // namespace
}  // namespace treadle::test::unused_parameters_test

// Optimizers within the pass step sparse averages, or refuse the pass on all ranks before anything is stepped.

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <functional>
#include <memory>

#include "tests/support/expect_error.h"
#include "tests/train/ddp/tables.h"

namespace treadle::test::sparse_optimizer_test {
namespace {

using namespace sparse_test;

template <class Optimizer, class Options>
void expectStepsWithin(const Options& optimizerOptions) {
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    const int rank = worker.self().rank;
    Tables after(/*isSparse=*/true), within(/*isSparse=*/true);
    DistributedDataParallel<Tables> ddpAfter(after, ProcessGroup::make(worker, job.names()), smallBuckets());
    DdpOptions options = smallBuckets();
    options.optimizerInBackward = std::make_shared<Optimizer>(within->parameters(), optimizerOptions);
    DistributedDataParallel<Tables> ddpWithin(within, ProcessGroup::make(worker, job.names()), options);
    Optimizer optimizer(after->parameters(), optimizerOptions);
    for (int step = 0; step < 5; ++step) {
      optimizer.zero_grad();
      after->loss(rank, step).backward();
      optimizer.step();
      within->loss(rank, step).backward();
      expectEqualBits(valuesOf(*within), valuesOf(*after));
      EXPECT_FALSE(within->words->weight.grad().defined());
    }
  });
}

TEST(SparseGradientsWith, AnOptimizerWithinThePassAreStepped) {
  expectStepsWithin<torch::optim::SGD>(torch::optim::SGDOptions(0.1).momentum(0.9));
  expectStepsWithin<torch::optim::Adagrad>(torch::optim::AdagradOptions(0.1));
}

using MakeOptimizer = std::function<std::shared_ptr<torch::optim::Optimizer>(const torch::nn::Module&)>;

template <class Optimizer, class Options>
MakeOptimizer makes(const Options& options) {
  return [options](const torch::nn::Module& net) { return std::make_shared<Optimizer>(net.parameters(), options); };
}

// The layouts of two ranks in one pass, and what the refusal says of it, if it is refused.
struct LayoutPass {
  std::string kinds;
  std::string refusal = {};
};

// Passes that are refused change nothing on any rank, and the others are as if these had not been: by an optimizer of
// one process with dense gradients.
void expectSteps(const MakeOptimizer& make, const std::vector<LayoutPass>& passes) {
  TensorJob job(ranks(2));
  BesideTable alone(/*isSparse=*/false);
  const auto optimizerAlone = make(*alone);
  std::vector<std::vector<at::Tensor>> wanted;
  for (int step = 0; step < static_cast<int>(passes.size()); ++step) {
    const LayoutPass& pass = passes[static_cast<size_t>(step)];
    alone->zero_grad();
    for (int rank = 0; rank < 2; ++rank) alone->backward(pass.kinds[static_cast<size_t>(rank)], rank, step, 2);
    if (pass.refusal.empty()) optimizerAlone->step();
    wanted.push_back(valuesOf(*alone));
  }
  job.onAll([&](Worker& worker) {
    const int rank = worker.self().rank;
    BesideTable net(/*isSparse=*/true);
    DdpOptions options = smallBuckets();
    options.optimizerInBackward = make(*net);
    DistributedDataParallel<BesideTable> ddp(net, ProcessGroup::make(worker, job.names()), options);
    for (int step = 0; step < static_cast<int>(passes.size()); ++step) {
      const LayoutPass& pass = passes[static_cast<size_t>(step)];
      SCOPED_TRACE(pass.kinds + " in " + std::to_string(step));
      const std::vector<at::Tensor> before = valuesOf(*net);
      const auto backward = [&] { net->backward(pass.kinds[static_cast<size_t>(rank)], rank, step, 1); };
      if (pass.refusal.empty()) {
        backward();
      } else {
        const std::string message = messageOf<ArgumentError>(backward);
        EXPECT_TRUE(contains(message, "cannot step parameter 'table.weight'"));
        EXPECT_TRUE(contains(message, pass.refusal));
        EXPECT_TRUE(contains(message, "torch::optim::"));
        expectEqualBits(valuesOf(*net), before);
        net->zero_grad();
      }
      const std::vector<at::Tensor> now = valuesOf(*net);
      for (size_t i = 0; i < now.size(); ++i) EXPECT_TRUE(close(now[i], wanted[static_cast<size_t>(step)][i])) << i;
      EXPECT_EQ(ddp.state().condition, DdpCondition::kUsable);
    }
    ddp.verifyReplicas();
  });
}

// Momentum has the layout of the first average. Whether a step fits is known from the channel, on all ranks.
TEST(LayoutsThatChange, AreRefusedWhereSgdWithinThePassCannotStepThem) {
  const std::string isDense = "whose average is dense: its momentum is sparse, of 1 sparse dimensions";
  const std::string isSparse = "whose average is sparse, of 1 sparse dimensions: its momentum is dense";
  const auto momentum = makes<torch::optim::SGD>(torch::optim::SGDOptions(0.1).momentum(0.9));
  expectSteps(momentum, {{"sn"}, {"sd", isDense}, {"nd", isDense}, {"st", isDense}, {"ss"}, {"nn"}, {"se"}});
  expectSteps(momentum, {{"sn"}, {"tt", "sparse, of 2 sparse dimensions: its momentum is sparse, of 1"}, {"ns"}});
  expectSteps(momentum, {{"sd"}, {"ss"}, {"tt"}, {"dd"}, {"ns"}});
  const auto nesterov = makes<torch::optim::SGD>(torch::optim::SGDOptions(0.1).momentum(0.9).nesterov(true));
  expectSteps(nesterov, {{"dd"}, {"ss", isSparse}, {"sn", isSparse}, {"sd"}, {"st"}});
  expectSteps(nesterov, {{"ss"}, {"sd", isDense}, {"sn"}});
  expectSteps(makes<torch::optim::SGD>(torch::optim::SGDOptions(0.1)), {{"sn"}, {"sd"}, {"tt"}, {"ss"}, {"dd"}});
}

TEST(LayoutsThatChange, AreRefusedWhereAnOptimizerHasNoStepForSparseAverages) {
  const std::vector<LayoutPass> denseAlone = {
      {"ss", "it steps by dense ones alone"}, {"sd"}, {"sn", "it steps by dense ones alone"}, {"dn"}, {"ts"}};
  expectSteps(makes<torch::optim::Adam>(torch::optim::AdamOptions(0.1)), denseAlone);
  expectSteps(makes<torch::optim::AdamW>(torch::optim::AdamWOptions(0.1)), denseAlone);
  expectSteps(makes<torch::optim::RMSprop>(torch::optim::RMSpropOptions(0.1)), denseAlone);
  const std::vector<LayoutPass> noDecay = {{"ss", "weight decay"}, {"sd"}, {"sn", "weight decay"}, {"dn"}};
  expectSteps(makes<torch::optim::SGD>(torch::optim::SGDOptions(0.1).weight_decay(0.1)), noDecay);
  expectSteps(makes<torch::optim::Adagrad>(torch::optim::AdagradOptions(0.1).weight_decay(0.1)), noDecay);
  expectSteps(makes<torch::optim::Adagrad>(torch::optim::AdagradOptions(0.1)), {{"ss"}, {"sd"}, {"sn"}, {"tt"}});
}

}  // namespace
}  // namespace treadle::test::sparse_optimizer_test

// Clipping the hybrid model (an embedding on a parameter server, a linear layer on two trainers under DDP, a context
// for each trainer) is torch's clipping of all its gradients in one process, in float64 to 1e-12; and so is what it
// then trains.

#include <torch/nn/functional/loss.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/sgd.h>
#include <treadle/ddp.h>
#include <treadle/optim.h>

#include <limits>

#include "tests/oracle/hybrid_model.h"

namespace treadle::test::clipped_gradients_test {
namespace {

using namespace hybrid;

constexpr double kLearningRate = 0.3, kMaxNorm = 0.2;
constexpr int64_t kSteps = 3;

// The norm of each step and what the linear layer has become.
struct Trained {
  std::vector<double> norms;
  at::Tensor weight, bias;
};
TREADLE_FIELDS(Trained, norms, weight, bias)

Trained train(CallContext& call, const Bag& bag, int64_t trainer, double normType) {
  Worker& worker = call.worker();
  ProcessGroup group = ProcessGroup::make(worker, {"trainer0", "trainer1"});
  DistributedDataParallel<torch::nn::Linear> linear(makeLinear(11), group);
  std::vector<RRef<at::Tensor>> parameters = bag.remoteParameters();
  for (auto& own : parameterRefs(worker, *linear)) parameters.push_back(own);
  auto optimizer =
      DistributedOptimizer::make<torch::optim::SGD>(worker, parameters, torch::optim::SGDOptions(kLearningRate));
  Trained trained;
  for (int64_t step = 0; step < kSteps; ++step) {
    AutogradContext context(worker);
    at::Tensor logits = linear.forward(bag.forward(indicesOf(trainer, step)));
    context.backward({torch::nn::functional::cross_entropy(logits, labelsOf(trainer, step))});
    // No step of the other trainer before this pass is over: it waits for this rank.
    trained.norms.push_back(clipGradNorm(optimizer, context, linear, kMaxNorm, {.normType = normType}));
    optimizer.step(context);
    barrier(group).wait();
  }
  trained.weight = linear->weight.detach().clone();
  trained.bias = linear->bias.detach().clone();
  return trained;
}

at::Tensor withGradient(const at::Tensor& gradient) {
  at::Tensor holder = at::zeros_like(gradient).requires_grad_();
  holder.mutable_grad() = gradient;
  return holder;
}

// All gradients of a step in one process: the linear layer's averages, and the embedding's for each trainer.
struct Alone {
  torch::nn::EmbeddingBag bag = makeBag(7);
  torch::nn::Linear linear = makeLinear(11);

  double step(int64_t number, double normType) {
    std::vector<at::Tensor> losses;
    for (int64_t trainer : {0, 1})
      losses.push_back(
          torch::nn::functional::cross_entropy(linear(bag(indicesOf(trainer, number))), labelsOf(trainer, number)));
    std::vector<at::Tensor> holders;
    for (const at::Tensor& average :
         torch::autograd::grad({(losses[0] + losses[1]) / 2}, {linear->weight, linear->bias}, {}, true))
      holders.push_back(withGradient(average));
    for (const at::Tensor& loss : losses)
      holders.push_back(withGradient(torch::autograd::grad({loss}, {bag->weight}, {}, true)[0]));
    const double norm = torch::nn::utils::clip_grad_norm_(holders, kMaxNorm, normType);
    torch::NoGradGuard noGradients;
    linear->weight.sub_(holders[0].grad(), kLearningRate);
    linear->bias.sub_(holders[1].grad(), kLearningRate);
    for (size_t trainer : {2U, 3U}) bag->weight.sub_(holders[trainer].grad(), kLearningRate);
    return norm;
  }
};

TEST(ClipOracle, NormsAndTrainingAreThoseOfOneProcess) {
  Functions functions;
  addModule<&makeBag>(functions, "EmbeddingBag");
  TensorJob job({"ps", "trainer0", "trainer1"}, functions.add<&train>("train"));
  for (double normType : {1.0, 2.0, std::numeric_limits<double>::infinity()}) {
    Bag bag(job[0], "ps", 7);
    auto first = job[0].async<&train>("trainer0", bag, 0, normType);
    auto second = job[0].async<&train>("trainer1", bag, 1, normType);
    const std::vector<Trained> trained = {first.wait(), second.wait()};
    Alone alone;
    for (int64_t step = 0; step < kSteps; ++step) {
      const double norm = alone.step(step, normType);
      for (const Trained& one : trained)
        EXPECT_NEAR(one.norms[static_cast<size_t>(step)], norm, 1e-12 * norm)
            << "norm " << normType << " step " << step;
    }
    EXPECT_GT(trained[0].norms[0], kMaxNorm) << "something is clipped";
    for (const Trained& one : trained) {
      EXPECT_TRUE(close(one.weight, alone.linear->weight.detach(), 1e-12)) << normType;
      EXPECT_TRUE(close(one.bias, alone.linear->bias.detach(), 1e-12)) << normType;
    }
    EXPECT_TRUE(at::equal(trained[0].weight, trained[1].weight)) << "equal bits on all ranks";
    EXPECT_TRUE(close(bag.remoteParameters().front().toHere().detach(), alone.bag->weight.detach(), 1e-12)) << normType;
  }
}

}  // namespace
}  // namespace treadle::test::clipped_gradients_test

// The gradients of the hybrid model (an embedding on a parameter server, a linear layer on two trainers under DDP) are
// those of one process, in float64 to 1e-10; and several steps of it train what one process trains.

#include <torch/nn/functional/loss.h>
#include <treadle/ddp.h>
#include <treadle/optim.h>

#include "tests/oracle/hybrid_model.h"
#include "tests/support/gate.h"

namespace treadle::test::hybrid_gradients_test {
namespace {

using namespace hybrid;

constexpr double kLearningRate = 0.3;

// What a trainer found in one step.
struct Found {
  at::Tensor loss, weight, bias, embedding;
};
TREADLE_FIELDS(Found, loss, weight, bias, embedding)

at::Tensor onlyGradientHere(CallContext& call, int64_t contextId) {
  const auto all = gradients(call.worker(), contextId);
  if (all.size() != 1) raise(internalError(std::to_string(all.size()) + " gradients on the server"));
  return all.front().second;
}

// Each trainer begins with another linear layer: rank 0's is what counts.
std::vector<Found> train(CallContext& call, const Bag& bag, int64_t trainer, int64_t steps) {
  Worker& worker = call.worker();
  ProcessGroup group = ProcessGroup::make(worker, {"trainer0", "trainer1"});
  DistributedDataParallel<torch::nn::Linear> linear(makeLinear(11 + 10 * trainer), group);
  std::vector<RRef<at::Tensor>> parameters = bag.remoteParameters();
  for (auto& own : parameterRefs(worker, *linear)) parameters.push_back(own);
  auto optimizer =
      DistributedOptimizer::make<torch::optim::SGD>(worker, parameters, torch::optim::SGDOptions(kLearningRate));
  std::vector<Found> found;
  for (int64_t step = 0; step < steps; ++step) {
    AutogradContext context(worker);
    at::Tensor logits = linear.forward(bag.forward(indicesOf(trainer, step)));
    at::Tensor loss = torch::nn::functional::cross_entropy(logits, labelsOf(trainer, step));
    context.backward({loss});
    found.push_back({loss.detach(), context.gradient(linear->weight), context.gradient(linear->bias),
                     worker.call<&onlyGradientHere>("ps", context.id())});
    EXPECT_FALSE(linear->weight.grad().defined()) << "gradients belong to the context";
    optimizer.step(context);
    barrier(group).wait();  // no forward before both trainers have stepped the server's parameters
  }
  found.push_back({{}, linear->weight.detach().clone(), linear->bias.detach().clone(), {}});
  return found;
}

TEST(HybridOracle, GradientsAndTrainingAreThoseOfOneProcess) {
  constexpr int64_t kSteps = 5;
  Functions functions;
  addModule<&makeBag>(functions, "EmbeddingBag");
  functions.add<&onlyGradientHere>("onlyGradientHere").add<&train>("train");
  TensorJob job({"ps", "trainer0", "trainer1"}, functions);
  std::vector<std::vector<Found>> found;
  at::Tensor trainedEmbedding;
  {
    Bag bag(job[0], "ps", 7);
    auto first = job[0].async<&train>("trainer0", bag, 0, kSteps);
    auto second = job[0].async<&train>("trainer1", bag, 1, kSteps);
    found = {first.wait(), second.wait()};
    trainedEmbedding = bag.remoteParameters().front().toHere();
  }

  torch::nn::EmbeddingBag bag = makeBag(7);
  torch::nn::Linear linear = makeLinear(11);
  for (int64_t step = 0; step < kSteps; ++step) {
    SCOPED_TRACE("step " + std::to_string(step));
    std::vector<at::Tensor> losses;
    for (int64_t trainer : {0, 1}) {
      const Found& one = found[static_cast<size_t>(trainer)][static_cast<size_t>(step)];
      losses.push_back(
          torch::nn::functional::cross_entropy(linear(bag(indicesOf(trainer, step))), labelsOf(trainer, step)));
      EXPECT_TRUE(close(one.loss, losses.back().detach()));
      // The server keeps the gradients of each trainer's pass apart.
      EXPECT_TRUE(close(one.embedding, torch::autograd::grad({losses.back()}, {bag->weight}, {}, true)[0]));
    }
    auto expected = torch::autograd::grad({(losses[0] + losses[1]) / 2}, {linear->weight, linear->bias, bag->weight});
    for (const std::vector<Found>& trainer : found) {
      EXPECT_TRUE(close(trainer[static_cast<size_t>(step)].weight, expected[0]));
      EXPECT_TRUE(close(trainer[static_cast<size_t>(step)].bias, expected[1]));
    }
    torch::NoGradGuard noGradients;
    linear->weight.sub_(expected[0], kLearningRate);
    linear->bias.sub_(expected[1], kLearningRate);
    bag->weight.sub_(expected[2], 2 * kLearningRate);  // the server's are stepped by each trainer
  }
  for (const std::vector<Found>& trainer : found) {
    EXPECT_TRUE(close(trainer.back().weight, linear->weight));
    EXPECT_TRUE(close(trainer.back().bias, linear->bias));
  }
  EXPECT_TRUE(close(trainedEmbedding, bag->weight));
  EXPECT_TRUE(test::eventuallyReleased([&] { return job.openContexts() == 0; }));
}

}  // namespace
}  // namespace treadle::test::hybrid_gradients_test

#include "examples/hybrid_digits/hybrid_model.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <torch/nn/functional/loss.h>
#include <torch/optim/sgd.h>
#include <treadle/checkpoint.h>

#include <tuple>
#include <vector>

#include "examples/common/stopwatch.h"

namespace hybrid {
namespace {

struct Epoch {
  double loss = 0;  // mean over its steps
  double stepSeconds = 0;
};

double testAccuracy(SingleResult& model, const Samples& test) {
  torch::NoGradGuard noGradients;
  return accuracyOf(model.linear(model.embedding(test.indices)), test.labels);
}

double trainStep(SingleResult& model, torch::optim::SGD& optimizer, const Samples& batch) {
  optimizer.zero_grad();
  at::Tensor logits = model.linear(model.embedding(batch.indices));
  at::Tensor loss = torch::nn::functional::cross_entropy(logits, batch.labels);
  loss.backward();
  optimizer.step();
  return loss.item<double>();
}

Epoch trainEpoch(SingleResult& model, torch::optim::SGD& optimizer, const Samples& train, const TrainOptions& options,
                 const std::function<void(int64_t, double)>& onStep) {
  Epoch epoch;
  int64_t steps = stepsPerEpoch(train.size(), 1, options.batchSize);
  example::Stopwatch watch;
  for (int64_t step = 0; step < steps; ++step) {
    double loss = trainStep(model, optimizer, batchOf(train, step, options.batchSize));
    epoch.loss += loss / static_cast<double>(steps);
    onStep(step + 1, loss);
  }
  epoch.stepSeconds = watch.seconds();
  return epoch;
}

}  // namespace

torch::nn::EmbeddingBag makeEmbeddingBag(int64_t rows, int64_t width, int64_t seed) {
  torch::nn::EmbeddingBag bag(torch::nn::EmbeddingBagOptions(rows, width).mode(torch::kSum));
  torch::NoGradGuard noGradients;
  bag->weight.normal_(0, 0.01, at::detail::createCPUGenerator(static_cast<uint64_t>(seed)));
  return bag;
}

torch::nn::Linear makeLinear(int64_t seed) {
  constexpr double kRowLength = 2;
  torch::nn::Linear linear(kBagWidth, kClasses);
  torch::NoGradGuard noGradients;
  at::Tensor random = at::empty({kBagWidth, kClasses}, linear->weight.options());
  random.normal_(0, 1, at::detail::createCPUGenerator(static_cast<uint64_t>(seed) + 1));
  linear->weight.copy_(std::get<0>(at::linalg_qr(random)).t() * kRowLength);
  linear->bias.zero_();
  return linear;
}

double accuracyOf(const at::Tensor& logits, const at::Tensor& labels) {
  return logits.argmax(1).eq(labels).to(at::kDouble).mean().item<double>();
}

void saveModel(const std::string& path, const at::Tensor& embedding, const torch::nn::Linear& linear) {
  treadle::saveSafetensors(
      path, {{"embedding.weight", embedding}, {"linear.weight", linear->weight}, {"linear.bias", linear->bias}});
}

SingleResult trainSingle(const Digits& digits, const TrainOptions& options, const TrainObserver& observer) {
  SingleResult result{.embedding = makeEmbeddingBag(kBagRows, kBagWidth, options.seed),
                      .linear = makeLinear(options.seed)};
  std::vector<at::Tensor> parameters = {result.embedding->weight, result.linear->weight, result.linear->bias};
  torch::optim::SGD optimizer(parameters, torch::optim::SGDOptions(options.learningRate));
  auto steps = static_cast<double>(stepsPerEpoch(digits.train.size(), 1, options.batchSize));
  double stepSeconds = 0;
  example::Stopwatch watch;
  for (int64_t number = 1; number <= options.epochs; ++number) {
    Epoch epoch = trainEpoch(result, optimizer, digits.train, options, [&](int64_t step, double loss) {
      if (observer.onStep) observer.onStep(number, step, loss);
    });
    stepSeconds += epoch.stepSeconds;
    result.testAccuracy = testAccuracy(result, digits.test);
    if (observer.onEpoch) {
      observer.onEpoch({number, "single", epoch.loss, result.testAccuracy, steps / epoch.stepSeconds, watch.seconds()});
    }
  }
  result.stepsPerS = steps * static_cast<double>(options.epochs) / stepSeconds;
  result.seconds = watch.seconds();
  return result;
}

}  // namespace hybrid

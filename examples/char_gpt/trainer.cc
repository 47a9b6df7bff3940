#include "examples/char_gpt/trainer.h"

#include <ATen/ATen.h>
#include <torch/data/dataloader.h>
#include <treadle/ddp.h>

#include <cmath>
#include <sstream>
#include <stdexcept>

#include "examples/char_gpt/learning_rate.h"
#include "examples/char_gpt/progress.h"
#include "examples/char_gpt/validation_loss.h"
#include "examples/common/text_windows.h"

namespace char_gpt {
namespace {

void setLearningRate(torch::optim::Optimizer& optimizer, double rate) {
  for (auto& group : optimizer.param_groups()) group.options().set_lr(rate);
}

int64_t windowsOfAllRanks(const Training& training) { return training.windows * training.ranks.size(); }

// The windows that this rank trains on, in an order by seed. Ranks take them in turn, so those of a step are the same
// together for any number of ranks. An epoch has whole batches only, so that every number of ranks sees the same
// batches. It leaves out the last windows of the text, fewer than one batch, in every epoch.
auto loaderOf(const example::TextWindows& text, const Training& training, uint64_t seed) {
  const auto batch = static_cast<size_t>(windowsOfAllRanks(training));
  const size_t samples = *text.size() / batch * batch;
  const treadle::DistributedSampler sampler(samples, training.ranks.rank(), training.ranks.size(), {.seed = seed});
  const auto own = static_cast<size_t>(training.windows);
  return torch::data::make_data_loader(text, sampler, torch::data::DataLoaderOptions(own));
}

void checkFinite(double validationLoss, int64_t steps, double learningRate) {
  if (std::isfinite(validationLoss)) return;
  std::ostringstream message;
  message << "the validation loss is not finite after step " << steps << ": use a lower --lr than " << learningRate;
  throw std::runtime_error(message.str());
}

}  // namespace

std::shared_ptr<example::CausalTransformer> makeModel(const Options& options, const Corpus& corpus) {
  at::manual_seed(options.training.seed);
  example::TransformerOptions sizes = options.model;
  sizes.vocabulary = corpus.alphabet.size();
  auto model = std::make_shared<example::CausalTransformer>(sizes);
  if (options.float64) model->to(at::kDouble);
  return model;
}

std::shared_ptr<torch::optim::AdamW> makeOptimizer(const example::CausalTransformer& model, const Options& options) {
  return std::make_shared<torch::optim::AdamW>(model.parameters(),
                                               torch::optim::AdamWOptions(options.training.learningRate));
}

Result train(example::CausalTransformer& model, const Corpus& corpus, const Options& options,
             const Training& training) {
  const int64_t steps = options.training.steps, length = options.model.length;
  checkFits(corpus, length, windowsOfAllRanks(training));
  auto loader = loaderOf(example::TextWindows(corpus.train, length), training, options.training.seed);
  const bool stepsHere = training.inBackward == nullptr;
  const auto optimizer = stepsHere ? makeOptimizer(model, options) : training.inBackward;
  Progress progress(training.name, steps, windowsOfAllRanks(training) * length, training.ranks, training.metrics);

  Result result{};
  for (int64_t step = 0; step < steps;)
    for (auto& batch : *loader) {
      setLearningRate(*optimizer, learningRateAt(step, steps, options.training.learningRate));
      if (stepsHere) optimizer->zero_grad();
      at::Tensor loss = example::nextTokenLoss(model.forward(batch.data), batch.target);
      loss.backward();  // a replica: returns the averages over all ranks in .grad, or steps by them
      if (stepsHere) optimizer->step();
      progress.step(loss);
      ++step;
      if (progress.isDue()) {
        result.validationLoss = validationLoss(model, corpus.validation, length, training.ranks);
        progress.show(result.validationLoss);
        checkFinite(result.validationLoss, step, options.training.learningRate);
      }
      if (step == steps) break;
    }
  result.seconds = progress.seconds();
  return result;
}

}  // namespace char_gpt

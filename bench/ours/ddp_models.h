#pragma once
// The models that the benchmark of data-parallel training trains, with first weights and batches that are the same in
// bench/peers/torch_models.py: both come from formulas, so the two programs can be held to the same losses.

#include <torch/nn/functional/loss.h>

#include "examples/common/causal_transformer.h"
#include "examples/common/text_windows.h"
#include "examples/data_parallel/digit_cnn.h"
#include "examples/data_parallel/digit_images.h"

namespace bench {

// Writes first weights into each parameter: matrices get numbers within 1 / sqrt(inputs), by a hash of their place
// among all parameters; biases get 0 and the weights of layer norms 1.
void fillParameters(torch::nn::Module& module);

// Which samples a rank takes in a step: `batch` numbers, `stride` from one to the next.
std::vector<size_t> samplesOf(int64_t step, int rank, int ranks, size_t batch, size_t stride, size_t samples);

// What differs between the two cases. kPairs: timed pairs of steps for each repetition that was asked for.
struct TransformerCase {
  using Model = example::CausalTransformer;
  static constexpr size_t kBatch = 16, kStride = 97;
  static constexpr int kPairs = 2;
  // With 0.1 a difference by rounding grows to hundredths of the loss within 45 steps.
  static constexpr double kLearningRate = 0.02;

  std::shared_ptr<Model> makeModel() const { return std::make_shared<Model>(options); }
  static at::Tensor lossOf(Model& model, const torch::data::Example<>& batch) {
    return example::nextTokenLoss(model.forward(batch.data), batch.target);
  }

  example::TransformerOptions options;
  example::TextWindows samples{example::kDefaultText, options.length};
};

struct CnnCase {
  using Model = data_parallel::DigitCnn;
  static constexpr size_t kBatch = 64, kStride = 1;
  static constexpr int kPairs = 20;
  static constexpr double kLearningRate = 0.1;

  static std::shared_ptr<Model> makeModel() { return std::make_shared<Model>(); }
  static at::Tensor lossOf(Model& model, const torch::data::Example<>& batch) {
    return torch::nn::functional::cross_entropy(model.forward(batch.data), batch.target);
  }

  data_parallel::DigitImages samples{digits::defaultPath()};
};

// With the first weights.
template <class Case>
std::shared_ptr<typename Case::Model> firstModelOf(const Case& one) {
  auto model = one.makeModel();
  fillParameters(*model);
  return model;
}

template <class Case>
torch::data::Example<> batchOf(Case& one, int64_t step, int rank, int ranks) {
  return one.samples.get_batch(samplesOf(step, rank, ranks, Case::kBatch, Case::kStride, *one.samples.size()));
}

}  // namespace bench

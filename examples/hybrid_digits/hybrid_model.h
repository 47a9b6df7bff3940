#pragma once
// The model and how it is trained: a bag of embeddings (on the parameter server in the distributed job), then
// a linear layer (on the trainers), cross-entropy, SGD. Both jobs make the two parts here, from the same
// seed, so they begin with the same weights. Functions without state; any thread.

#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include <cstdint>
#include <functional>
#include <string>

#include "examples/hybrid_digits/digits.h"
#include "examples/hybrid_digits/metrics.h"

namespace hybrid {

inline constexpr int64_t kBagRows = kPixels * kLevels;  // 1,088
inline constexpr int64_t kBagWidth = 16;

struct TrainOptions {
  int64_t epochs = 10;
  int64_t batchSize = 32;
  double learningRate = 0.05;
  int64_t seed = 0;  // of the split and of the first weights
};

// [rows, width], mode sum, weights from N(0, 0.01). libtorch would begin with N(0, 1): the sum of 64 rows is
// then 8 wide, and ten epochs of plain SGD end at an accuracy below 0.5. From 0.01 the sum starts near zero
// and the data decide.
torch::nn::EmbeddingBag makeEmbeddingBag(int64_t rows, int64_t width, int64_t seed);

// [kClasses, kBagWidth] with orthogonal rows of length 2, bias zero. These weights carry the gradients to the
// bag, where most of the learning happens; orthogonal rows (Saxe et al., 2014) carry those of all classes
// alike.
torch::nn::Linear makeLinear(int64_t seed);

// Share of rows of `logits` [N, classes] whose largest element is at `labels` [N]; 0 to 1.
double accuracyOf(const at::Tensor& logits, const at::Tensor& labels);

// Writes model.safetensors: embedding.weight, linear.weight, linear.bias.
void saveModel(const std::string& path, const at::Tensor& embedding, const torch::nn::Linear& linear);

// What a training loop tells while it runs; an empty function is not called.
struct TrainObserver {
  std::function<void(int64_t epoch, int64_t step, double loss)> onStep;  // epoch from 1, steps done in it, from 1
  std::function<void(const EpochMetrics&)> onEpoch;
};

struct SingleResult {
  torch::nn::EmbeddingBag embedding{nullptr};
  torch::nn::Linear linear{nullptr};
  double testAccuracy = 0;
  double stepsPerS = 0;  // time in steps only, not in the tests between epochs
  double seconds = 0;
};

// The model in one process, as one would train it if nothing were distributed: batches of the same size over
// all of the training data in its fixed order, one SGD step on all parameters for each. Two trainers that
// share the data take half as many steps each; there the bag also gets a step for every batch, the linear
// layer one for two batches with their gradients averaged. So both see the same batches' worth of data per
// epoch, and the accuracies can be compared; the weights are not the same number for number.
SingleResult trainSingle(const Digits& digits, const TrainOptions& options, const TrainObserver& observer = {});

}  // namespace hybrid

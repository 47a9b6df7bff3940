#pragma once
// Trains a model on a text. A replica of a job and the only model of one process run the same code: a replica has hooks
// that average the gradients, and nothing else differs. One thread.

#include <torch/optim/adamw.h>

#include <memory>
#include <string>

#include "examples/char_gpt/corpus.h"
#include "examples/char_gpt/options.h"
#include "examples/char_gpt/ranks.h"
#include "examples/common/metrics_file.h"

namespace char_gpt {

// What differs between two trainings with the same options.
struct Training {
  std::string name;  // in the lines about it: "2 workers"
  int64_t windows;   // of the text that each rank takes per step
  Ranks ranks;
  example::MetricsFile* metrics;  // null on a rank that shows nothing
  // Of a replica whose backward passes step by it (DdpOptions::optimizerInBackward). Null: steps follow them.
  std::shared_ptr<torch::optim::AdamW> inBackward = nullptr;
};

struct Result {
  double validationLoss;  // nats per character
  double seconds;
};

// A model for the alphabet of the text, with first weights from the seed of the options.
std::shared_ptr<example::CausalTransformer> makeModel(const Options& options, const Corpus& corpus);

// Of its parameters.
std::shared_ptr<torch::optim::AdamW> makeOptimizer(const example::CausalTransformer& model, const Options& options);

// Trains the model with AdamW. In each step W ranks with B windows each take the windows that one process with W * B
// windows takes. Every rank calls it, and gets the same validation loss. Throws std::runtime_error, on all ranks: the
// text is too short; the validation loss is not finite, so the learning rate was too high.
Result train(example::CausalTransformer& model, const Corpus& corpus, const Options& options, const Training& training);

}  // namespace char_gpt

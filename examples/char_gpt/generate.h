#pragma once
// Draws text from a model. One thread.

#include "examples/common/causal_transformer.h"

namespace char_gpt {

struct GenerateOptions {
  int64_t count = 0;         // tokens to write
  int64_t length = 0;        // the longest text that the model takes
  double temperature = 0.8;  // below 1: likely tokens become more likely
  uint64_t seed = 0;
};

// The tokens, int64 [count], that follow `prompt`, integers [T] with T >= 1. Each is drawn from the model's guess after
// the last `length` tokens before it: from softmax(logits / temperature).
at::Tensor generate(example::CausalTransformer& model, const at::Tensor& prompt, const GenerateOptions& options);

}  // namespace char_gpt

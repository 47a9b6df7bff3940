#pragma once
// How well a model guesses a text that it does not learn. One thread.

#include "examples/char_gpt/ranks.h"
#include "examples/common/causal_transformer.h"

namespace char_gpt {

// Mean cross-entropy in nats per character, the same on all ranks. The text, integers [N], is cut into windows of
// `length` that do not overlap; the end that fills none is left out. Each rank computes a part of them; an operation of
// the group adds these up.
double validationLoss(example::CausalTransformer& model, const at::Tensor& text, int64_t length, const Ranks& ranks);

}  // namespace char_gpt

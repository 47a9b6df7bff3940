#pragma once
// A decoder-only transformer: for each position of a text it guesses the token that follows, and sees only the tokens
// up to there. Layer norm comes before each part and not after it (Xiong et al. 2020, "On Layer Normalization in the
// Transformer Architecture"), so plain SGD trains it without a warm-up. One thread.

#include <torch/nn/module.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include <functional>

namespace example {

struct TransformerOptions {
  int64_t vocabulary = 256;  // tokens are bytes
  int64_t length = 128;      // the longest text, in tokens
  int64_t layers = 4;
  int64_t width = 256;  // of the vector at each position; a multiple of `heads`
  int64_t heads = 4;
};

// Attention over the tokens so far, then two linear layers at each position. [N, T, width] to the same.
class TransformerBlock : public torch::nn::Module {
 public:
  explicit TransformerBlock(const TransformerOptions& options);
  at::Tensor forward(const at::Tensor& states);

 private:
  at::Tensor attend(const at::Tensor& states);

  const int64_t heads_;
  // In the order in which they run, which is that of the parameters: DistributedDataParallel sends gradients from the
  // last one on, as backward makes them.
  torch::nn::LayerNorm attentionNorm_;
  torch::nn::Linear queriesKeysValues_, attended_;
  torch::nn::LayerNorm wideNorm_;
  torch::nn::Linear widen_, narrow_;
};

class CausalTransformer : public torch::nn::Module {
 public:
  // std::invalid_argument: a width that is no multiple of `heads`.
  explicit CausalTransformer(const TransformerOptions& options);

  // Tokens, int64 [N, T] with T up to `length`. Returns logits [N, T, vocabulary]: at each position of the token after
  // it.
  at::Tensor forward(const at::Tensor& tokens);

  // Called with each part of the model before forward uses its parameters, which may still be on their way
  // (DistributedDataParallel::awaitAverages). Empty: nothing is called.
  std::function<void(const torch::nn::Module& part)> beforeUse;

 private:
  // Calls `beforeUse` for a part of the model.
  template <class Holder>
  Holder& ready(Holder& part) {
    if (beforeUse) beforeUse(*part);
    return part;
  }

  torch::nn::Embedding tokens_, positions_;
  torch::nn::ModuleList blocks_;
  torch::nn::LayerNorm norm_;
  torch::nn::Linear logits_;
};

// Cross-entropy in nats per token; `next` holds the tokens that followed, int64 [N, T].
at::Tensor nextTokenLoss(const at::Tensor& logits, const at::Tensor& next);

}  // namespace example

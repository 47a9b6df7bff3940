#include "examples/common/causal_transformer.h"

#include <ATen/ATen.h>
#include <torch/nn/functional/activation.h>
#include <torch/nn/functional/loss.h>

#include <stdexcept>

namespace example {
namespace {

torch::nn::LayerNorm layerNorm(int64_t width) { return torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})); }

}  // namespace

TransformerBlock::TransformerBlock(const TransformerOptions& options)
    : heads_(options.heads),
      attentionNorm_(register_module("attentionNorm", layerNorm(options.width))),
      queriesKeysValues_(register_module("queriesKeysValues", torch::nn::Linear(options.width, 3 * options.width))),
      attended_(register_module("attended", torch::nn::Linear(options.width, options.width))),
      wideNorm_(register_module("wideNorm", layerNorm(options.width))),
      widen_(register_module("widen", torch::nn::Linear(options.width, 4 * options.width))),
      narrow_(register_module("narrow", torch::nn::Linear(4 * options.width, options.width))) {}

at::Tensor TransformerBlock::attend(const at::Tensor& states) {
  const int64_t texts = states.size(0), length = states.size(1), width = states.size(2);
  // [3, N, heads, T, width / heads]
  const at::Tensor split =
      queriesKeysValues_(states).view({texts, length, 3, heads_, width / heads_}).permute({2, 0, 3, 1, 4});
  const at::Tensor seen =
      at::scaled_dot_product_attention(split[0], split[1], split[2], /*attn_mask=*/{}, /*dropout_p=*/0.0,
                                       /*is_causal=*/true);
  return attended_(seen.transpose(1, 2).reshape({texts, length, width}));
}

at::Tensor TransformerBlock::forward(const at::Tensor& states) {
  const at::Tensor attended = states + attend(attentionNorm_(states));
  return attended + narrow_(torch::nn::functional::gelu(widen_(wideNorm_(attended))));
}

CausalTransformer::CausalTransformer(const TransformerOptions& options)
    : tokens_(register_module("tokens", torch::nn::Embedding(options.vocabulary, options.width))),
      positions_(register_module("positions", torch::nn::Embedding(options.length, options.width))),
      blocks_(register_module("blocks", torch::nn::ModuleList())),
      norm_(register_module("norm", layerNorm(options.width))),
      logits_(register_module(
          "logits", torch::nn::Linear(torch::nn::LinearOptions(options.width, options.vocabulary).bias(false)))) {
  if (options.heads < 1 || options.width % options.heads != 0)
    throw std::invalid_argument("the width of the transformer must be a multiple of its heads");
  for (int64_t layer = 0; layer < options.layers; ++layer) blocks_->push_back(TransformerBlock(options));
}

at::Tensor CausalTransformer::forward(const at::Tensor& tokens) {
  const at::Tensor embedded = ready(tokens_)->forward(tokens);
  at::Tensor states = embedded + ready(positions_)->forward(at::arange(tokens.size(1), at::kLong));
  for (const auto& block : *blocks_) states = ready(block)->as<TransformerBlock>()->forward(states);
  states = ready(norm_)->forward(states);
  return ready(logits_)->forward(states);
}

at::Tensor nextTokenLoss(const at::Tensor& logits, const at::Tensor& next) {
  return torch::nn::functional::cross_entropy(logits.flatten(0, 1), next.flatten());
}

}  // namespace example

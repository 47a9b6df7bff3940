#include "examples/char_gpt/generate.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include <algorithm>

namespace char_gpt {

at::Tensor generate(example::CausalTransformer& model, const at::Tensor& prompt, const GenerateOptions& options) {
  at::NoGradGuard noGradients;
  const at::Generator random = at::detail::createCPUGenerator(options.seed);
  at::Tensor text = prompt.to(at::kLong);
  for (int64_t i = 0; i < options.count; ++i) {
    const at::Tensor seen = text.slice(0, std::max<int64_t>(0, text.numel() - options.length));
    const at::Tensor logits = model.forward(seen.unsqueeze(0)).select(1, -1).squeeze(0);
    const at::Tensor likely = at::softmax(logits / options.temperature, 0);
    text = at::cat({text, at::multinomial(likely, 1, /*replacement=*/false, random)});
  }
  return text.slice(0, prompt.numel());
}

}  // namespace char_gpt

#include "examples/char_gpt/validation_loss.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <vector>

#include "examples/common/text_windows.h"

namespace char_gpt {
namespace {

constexpr size_t kWindowsAtOnce = 32;

// Windows i with first <= i < last, where window i begins at character i * length.
torch::data::Example<> separateWindows(example::TextWindows& text, size_t first, size_t last, size_t length) {
  std::vector<size_t> starts;
  for (size_t i = first; i < last; ++i) starts.push_back(i * length);
  return text.get_batch(starts);
}

}  // namespace

double validationLoss(example::CausalTransformer& model, const at::Tensor& text, int64_t length, const Ranks& ranks) {
  at::NoGradGuard noGradients;
  example::TextWindows windows(text, length);
  const auto rank = static_cast<size_t>(ranks.rank()), size = static_cast<size_t>(ranks.size());
  const auto step = static_cast<size_t>(length);
  const size_t count = (*windows.size() - 1) / step + 1;
  double loss = 0, counted = 0;
  for (size_t first = rank * kWindowsAtOnce; first < count; first += size * kWindowsAtOnce) {
    const size_t last = std::min(first + kWindowsAtOnce, count);
    const auto batch = separateWindows(windows, first, last, step);
    const auto part = static_cast<double>(last - first);
    loss += part * example::nextTokenLoss(model.forward(batch.data), batch.target).item<double>();
    counted += part;
  }
  at::Tensor sums = at::tensor({loss, counted}, at::kDouble);
  ranks.sum(sums);
  return (sums[0] / sums[1]).item<double>();
}

}  // namespace char_gpt

#include "examples/common/text_windows.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <stdexcept>
#include <vector>

namespace example {
namespace {

at::Tensor bytesOf(const std::string& path, int64_t length) {
  const std::string text = readText(path);
  const auto count = static_cast<int64_t>(text.size());
  if (count <= length)
    throw std::runtime_error(path + ": has " + std::to_string(count) + " bytes, and one window takes " +
                             std::to_string(length + 1) + "; name a longer text with --text");
  at::Tensor bytes = at::empty({count}, at::kByte);
  std::copy(text.begin(), text.end(), bytes.mutable_data_ptr<uint8_t>());
  return bytes;
}

}  // namespace

TextWindows::TextWindows(const at::Tensor& tokens, int64_t length) : length_(length) {
  if (tokens.numel() <= length)
    throw std::invalid_argument("a text of " + std::to_string(tokens.numel()) + " tokens has no window of " +
                                std::to_string(length + 1));
  windows_ = tokens.unfold(0, length + 1, 1);
}

TextWindows::TextWindows(const std::string& path, int64_t length) : TextWindows(bytesOf(path, length), length) {}

torch::data::Example<> TextWindows::get_batch(c10::ArrayRef<size_t> windows) {
  const std::vector<int64_t> indexes(windows.begin(), windows.end());
  const at::Tensor texts = windows_.index_select(0, at::tensor(indexes, at::kLong)).to(at::kLong);
  return {texts.narrow(1, 0, length_).contiguous(), texts.narrow(1, 1, length_).contiguous()};
}

std::optional<size_t> TextWindows::size() const { return static_cast<size_t>(windows_.size(0)); }

}  // namespace example

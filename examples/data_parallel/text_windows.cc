#include "examples/data_parallel/text_windows.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <vector>

namespace data_parallel {
namespace {

at::Tensor readBytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream read;
  if (!(read << file.rdbuf())) throw std::runtime_error(path + ": cannot be read or is empty; name a text with --text");
  const std::string text = read.str();
  at::Tensor bytes = at::empty({static_cast<int64_t>(text.size())}, at::kByte);
  std::copy(text.begin(), text.end(), bytes.mutable_data_ptr<uint8_t>());
  return bytes;
}

}  // namespace

TextWindows::TextWindows(const std::string& path, int64_t length) : length_(length) {
  const at::Tensor bytes = readBytes(path);
  if (bytes.numel() <= length)
    throw std::runtime_error(path + ": has " + std::to_string(bytes.numel()) + " bytes, and one window takes " +
                             std::to_string(length + 1) + "; name a longer text with --text");
  windows_ = bytes.unfold(0, length + 1, 1);
}

torch::data::Example<> TextWindows::get_batch(c10::ArrayRef<size_t> windows) {
  const std::vector<int64_t> indexes(windows.begin(), windows.end());
  const at::Tensor texts = windows_.index_select(0, at::tensor(indexes, at::kLong)).to(at::kLong);
  return {texts.narrow(1, 0, length_).contiguous(), texts.narrow(1, 1, length_).contiguous()};
}

std::optional<size_t> TextWindows::size() const { return static_cast<size_t>(windows_.size(0)); }

}  // namespace data_parallel

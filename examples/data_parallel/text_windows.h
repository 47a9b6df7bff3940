#pragma once
// A text as samples for a language model: window i holds `length` bytes from byte i on, and the bytes that followed
// each of them. One thread.

#include <ATen/core/Tensor.h>
#include <torch/data/datasets/base.h>

#include <optional>
#include <string>

namespace data_parallel {

// A text that every Debian has.
inline constexpr const char* kDefaultText = "/usr/share/common-licenses/GPL-3";

class TextWindows : public torch::data::datasets::BatchDataset<TextWindows, torch::data::Example<>> {
 public:
  // Throws std::runtime_error, which names the file: it cannot be read, or is shorter than one window.
  TextWindows(const std::string& path, int64_t length);

  // Data and target are int64 [N, length], with values 0 to 255.
  torch::data::Example<> get_batch(c10::ArrayRef<size_t> windows) override;
  std::optional<size_t> size() const override;

 private:
  const int64_t length_;
  at::Tensor windows_;  // [size, length + 1]: views into the one text
};

}  // namespace data_parallel

#pragma once
// A text as samples for a language model: window i holds `length` tokens from token i on, and the tokens that followed
// each of them. One thread.

#include <ATen/core/Tensor.h>
#include <torch/data/datasets/base.h>

#include <optional>
#include <string>

#include "examples/common/text_file.h"

namespace example {

class TextWindows : public torch::data::datasets::BatchDataset<TextWindows, torch::data::Example<>> {
 public:
  // `tokens`: integers [N] from 0 on. Throws std::invalid_argument when they are fewer than length + 1.
  TextWindows(const at::Tensor& tokens, int64_t length);
  // The tokens are the bytes of a file. Throws std::runtime_error, which names the file: it cannot be read, or is
  // shorter than one window.
  TextWindows(const std::string& path, int64_t length);

  // Data and target are int64 [N, length].
  torch::data::Example<> get_batch(c10::ArrayRef<size_t> windows) override;
  std::optional<size_t> size() const override;

 private:
  const int64_t length_;
  at::Tensor windows_;  // [size, length + 1]: views into the one text
};

}  // namespace example

#pragma once
// The handwritten digits (examples/data) as images. One thread.

#include <ATen/core/Tensor.h>
#include <torch/data/datasets/base.h>

#include <optional>
#include <string>

#include "examples/data/digits_file.h"

namespace data_parallel {

class DigitImages : public torch::data::datasets::BatchDataset<DigitImages, torch::data::Example<>> {
 public:
  // The digits [first, last) of the file. Throws what digits::readFile throws.
  explicit DigitImages(const std::string& path, int64_t first = 0, int64_t last = digits::kDigits);

  // Data: float [N, 1, 8, 8], 0 (white) to 1. Target: int64 [N], 0 to 9.
  torch::data::Example<> get_batch(c10::ArrayRef<size_t> indexes) override;
  std::optional<size_t> size() const override;
  torch::data::Example<> all() const { return {images_, labels_}; }

 private:
  at::Tensor images_, labels_;
};

}  // namespace data_parallel

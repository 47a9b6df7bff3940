#include "examples/data_parallel/digit_images.h"

#include <ATen/ATen.h>

#include <vector>

namespace data_parallel {

DigitImages::DigitImages(const std::string& path, int64_t first, int64_t last) {
  constexpr int64_t kSide = 8;
  std::vector<int64_t> levels, labels;
  for (const digits::Digit& digit : digits::readFile(path)) {
    levels.insert(levels.end(), digit.levels.begin(), digit.levels.end());
    labels.push_back(digit.label);
  }
  const at::Tensor images = at::tensor(levels, at::kFloat).view({-1, 1, kSide, kSide}) / (digits::kLevels - 1);
  images_ = images.slice(0, first, last);
  labels_ = at::tensor(labels, at::kLong).slice(0, first, last);
}

torch::data::Example<> DigitImages::get_batch(c10::ArrayRef<size_t> indexes) {
  const at::Tensor wanted = at::tensor(std::vector<int64_t>(indexes.begin(), indexes.end()), at::kLong);
  return {images_.index_select(0, wanted), labels_.index_select(0, wanted)};
}

std::optional<size_t> DigitImages::size() const { return static_cast<size_t>(labels_.size(0)); }

}  // namespace data_parallel

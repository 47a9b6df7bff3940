#include "treadle/core/summation/declaration.h"

#include <algorithm>

namespace treadle::summation {

Declaration Declaration::of(std::vector<Tensor> tensors, const Shares& shares) {
  std::vector<uint64_t> bytes;
  for (const Tensor& tensor : tensors) bytes.push_back(tensor.bytes);
  return {std::move(tensors), placeBySize(bytes, shares), shares.workers.size()};
}

std::optional<size_t> Declaration::partAt(uint32_t tensor, uint64_t offset) const {
  const auto behind = std::upper_bound(parts.begin(), parts.end(), std::pair<size_t, uint64_t>(tensor, offset),
                                       [](const auto& wanted, const Part& part) {
                                         return wanted < std::pair<size_t, uint64_t>(part.tensor, part.begin);
                                       });
  if (behind == parts.begin()) return {};
  const Part& part = *(behind - 1);
  if (part.tensor != tensor || offset >= part.end) return {};
  return static_cast<size_t>(behind - 1 - parts.begin());
}

std::pair<size_t, size_t> Declaration::partsOf(size_t tensor) const {
  const auto [begin, end] = std::equal_range(parts.begin(), parts.end(), Part{tensor},
                                             [](const Part& a, const Part& b) { return a.tensor < b.tensor; });
  return {begin - parts.begin(), end - parts.begin()};
}

}  // namespace treadle::summation

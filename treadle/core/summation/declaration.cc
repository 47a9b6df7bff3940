#include "treadle/core/summation/declaration.h"

#include <algorithm>
#include <string>

namespace treadle::summation {

Result<Declaration> Declaration::of(std::vector<Tensor> tensors, const Shares& shares) {
  std::vector<uint64_t> bytes;
  if (tensors.size() > UINT32_MAX) return invalidArgument("more tensors are declared than a frame can number");
  for (const Tensor& tensor : tensors) {
    TREADLE_RETURN_IF_ERROR(checkReduces(tensor.type, group::ReduceOp::kSum));
    if (tensor.bytes % sizeOf(tensor.type) != 0)
      return invalidArgument("a tensor of " + std::string(nameOf(tensor.type)) + " is declared with " +
                             std::to_string(tensor.bytes) + " bytes");
    bytes.push_back(tensor.bytes);
  }
  return Declaration{std::move(tensors), placeBySize(bytes, shares), shares.workers.size()};
}

std::string Declaration::textOf(size_t tensor) const {
  const std::string& name = tensors[tensor].name;
  return name.empty() ? "tensor " + std::to_string(tensor) : "'" + name + "'";
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

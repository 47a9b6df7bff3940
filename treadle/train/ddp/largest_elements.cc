#include "treadle/train/ddp/largest_elements.h"

#include <ATen/Dispatch.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <span>
#include <vector>

namespace treadle::ddp {
namespace {

// NaN has no place in an order.
template <class T>
T magnitudeOf(T value) {
  return std::isnan(value) ? std::numeric_limits<T>::infinity() : std::abs(value);
}

// The smallest magnitude that is among the largest.
template <class T>
T thresholdOf(std::span<const T> values, size_t count) {
  std::vector<T> magnitudes(values.size());
  std::transform(values.begin(), values.end(), magnitudes.begin(), magnitudeOf<T>);
  const auto last = magnitudes.begin() + static_cast<ptrdiff_t>(count - 1);
  std::nth_element(magnitudes.begin(), last, magnitudes.end(), std::greater<>());
  return *last;
}

template <class T>
void writeIndexes(std::span<const T> values, std::span<int64_t> indexes) {
  const T threshold = thresholdOf(values, indexes.size());
  size_t above = 0;
  for (const T value : values) above += magnitudeOf(value) > threshold ? 1 : 0;
  size_t equalOnes = indexes.size() - above, written = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    const T magnitude = magnitudeOf(values[i]);
    if (magnitude < threshold || (magnitude == threshold && equalOnes == 0)) continue;
    if (magnitude == threshold) --equalOnes;
    indexes[written++] = static_cast<int64_t>(i);
  }
}

}  // namespace

at::Tensor indexesOfLargest(const at::Tensor& values, int64_t count) {
  at::Tensor indexes = at::empty({count}, at::kLong);
  if (count == 0) return indexes;
  AT_DISPATCH_FLOATING_TYPES(values.scalar_type(), "indexesOfLargest", [&] {
    writeIndexes(std::span(values.const_data_ptr<scalar_t>(), static_cast<size_t>(values.numel())),
                 std::span(indexes.mutable_data_ptr<int64_t>(), static_cast<size_t>(count)));
  });
  return indexes;
}

}  // namespace treadle::ddp

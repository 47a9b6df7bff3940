#include "treadle/train/ddp/low_rank.h"

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>

#include "treadle/train/ddp/hash128.h"

namespace treadle::ddp {
namespace {

template <class T>
std::span<T> rowOf(const at::Tensor& rows, int64_t row) {
  const auto width = static_cast<size_t>(rows.size(1));
  return {rows.data_ptr<T>() + static_cast<size_t>(row) * width, width};
}

template <class T>
double dotOf(std::span<const T> a, std::span<const T> b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  return sum;
}

template <class T>
double lengthOf(std::span<const T> row) {
  return std::sqrt(dotOf<T>(row, row));
}

// Takes the directions of the rows before it out of a row.
template <class T>
void project(const at::Tensor& rows, int64_t row) {
  const std::span<T> own = rowOf<T>(rows, row);
  for (int64_t before = 0; before < row; ++before) {
    const std::span<const T> direction = rowOf<T>(rows, before);
    const double part = dotOf<T>(direction, own);
    for (size_t i = 0; i < own.size(); ++i) own[i] = static_cast<T>(own[i] - part * direction[i]);
  }
}

// Whether the row is not 0 then. What is left of a dependent row is rounding, which has no direction.
template <class T>
bool normalize(std::span<T> row, double lengthBefore) {
  const double length = lengthOf<T>(row);
  const double rounding = 100 * static_cast<double>(std::numeric_limits<T>::epsilon());
  const bool isIndependent = length > rounding * lengthBefore;
  for (T& value : row) value = isIndependent ? static_cast<T>(value / length) : T{0};
  return isIndependent;
}

template <class T>
int64_t orthonormalizeRows(const at::Tensor& rows) {
  int64_t dependent = 0;
  for (int64_t row = 0; row < rows.size(0); ++row) {
    const double lengthBefore = lengthOf<T>(rowOf<T>(rows, row));
    project<T>(rows, row);
    project<T>(rows, row);
    if (!normalize<T>(rowOf<T>(rows, row), lengthBefore)) ++dependent;
  }
  return dependent;
}

template <class T>
void multiplyRows(const at::Tensor& p, const at::Tensor& q, const at::Tensor& product, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    const std::span<T> result = rowOf<T>(product, row);
    std::fill(result.begin(), result.end(), T{0});
    for (int64_t factor = 0; factor < p.size(0); ++factor) {
      const T left = rowOf<T>(p, factor)[static_cast<size_t>(row)];
      const std::span<const T> right = rowOf<T>(q, factor);
      for (size_t i = 0; i < result.size(); ++i) result[i] += left * right[i];
    }
  }
}

}  // namespace

int64_t orthonormalize(at::Tensor& rows) {
  return AT_DISPATCH_FLOATING_TYPES(rows.scalar_type(), "orthonormalize",
                                    [&] { return orthonormalizeRows<scalar_t>(rows); });
}

// Each row is computed by one thread, so their number changes no bit.
void multiplyTransposed(const at::Tensor& p, const at::Tensor& q, at::Tensor& product) {
  constexpr int64_t kElementsOfATask = 16 * 1024;
  const int64_t rowsOfATask = 1 + kElementsOfATask / (p.size(0) * q.size(1) + 1);
  AT_DISPATCH_FLOATING_TYPES(product.scalar_type(), "multiplyTransposed", [&] {
    at::parallel_for(0, product.size(0), rowsOfATask,
                     [&](int64_t begin, int64_t end) { multiplyRows<scalar_t>(p, q, product, begin, end); });
  });
}

void fillRandomly(at::Tensor& rows, int64_t row, uint64_t seed) {
  AT_DISPATCH_FLOATING_TYPES(rows.scalar_type(), "fillRandomly", [&] {
    uint64_t place = 0;
    for (scalar_t& value : rowOf<scalar_t>(rows, row)) {
      const uint64_t bits = hashed({seed, static_cast<uint64_t>(row)}, std::as_bytes(std::span(&place, 1))).first;
      value = static_cast<scalar_t>(static_cast<double>(bits >> 11) * 0x1p-52 - 1);
      ++place;
    }
  });
}

void completeRandomly(at::Tensor& rows, uint64_t seed) {
  for (uint64_t attempt = 0; orthonormalize(rows) > 0; ++attempt)
    for (int64_t row = 0; row < rows.size(0); ++row)
      if (rows[row].count_nonzero().item<int64_t>() == 0) fillRandomly(rows, row, seed + attempt);
}

}  // namespace treadle::ddp

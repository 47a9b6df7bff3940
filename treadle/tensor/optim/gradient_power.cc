#include "treadle/tensor/optim/gradient_power.h"

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include "treadle/core/base/error.h"

namespace treadle::optim {
namespace {

// libtorch's own reductions choose their order by the processor and the number of threads. Here blocks of a fixed size
// are cut into a fixed number of lanes, which the compiler can keep in vector registers.
constexpr size_t kLanes = 8;
constexpr int64_t kBlock = 32 * 1024;
constexpr double kLargest = std::numeric_limits<double>::infinity();  // as a norm

// What an element adds to a power, and how powers are combined.
struct Magnitude {
  static double of(double value) { return std::abs(value); }
  static double combine(double a, double b) { return a + b; }
};
struct Square {
  static double of(double value) { return value * value; }
  static double combine(double a, double b) { return a + b; }
};
struct Largest {
  static double of(double value) { return std::abs(value); }
  // A NaN stays: nothing is larger.
  static double combine(double a, double b) { return b > a || std::isnan(b) ? b : a; }
};

template <class Kind>
double combined(std::span<const double> powers) {
  double result = 0;
  for (double power : powers) result = Kind::combine(result, power);
  return result;
}

template <class Kind, class T>
double ofBlock(std::span<const T> values) {
  std::array<double, kLanes> lanes{};
  size_t i = 0;
  for (; i + kLanes <= values.size(); i += kLanes)
    for (size_t lane = 0; lane < kLanes; ++lane)
      lanes[lane] = Kind::combine(lanes[lane], Kind::of(static_cast<double>(values[i + lane])));
  for (size_t lane = 0; i < values.size(); ++i, ++lane)
    lanes[lane] = Kind::combine(lanes[lane], Kind::of(static_cast<double>(values[i])));
  return combined<Kind>(lanes);
}

template <class Kind, class T>
double ofValues(std::span<const T> values) {
  const auto count = static_cast<int64_t>(values.size()), blocks = (count + kBlock - 1) / kBlock;
  std::vector<double> powers(static_cast<size_t>(blocks));
  at::parallel_for(0, blocks, 1, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) {
      const int64_t first = block * kBlock, size = std::min(kBlock, count - first);
      powers[static_cast<size_t>(block)] =
          ofBlock<Kind>(values.subspan(static_cast<size_t>(first), static_cast<size_t>(size)));
    }
  });
  return combined<Kind>(powers);
}

// The elements in the order of their indexes, whatever the strides are.
at::Tensor elementsOf(const at::Tensor& gradient) {
  const at::Tensor plain = gradient.detach();
  return plain.is_sparse() ? plain.coalesce().values().contiguous() : plain.contiguous();
}

}  // namespace

void checkHasPower(const at::Tensor& gradient) {
  const bool isReadable =
      gradient.device().is_cpu() && (gradient.layout() == at::kStrided || gradient.layout() == at::kSparse);
  const auto type = gradient.scalar_type();
  const bool isKnownType = type == at::kHalf || type == at::kBFloat16 || type == at::kFloat || type == at::kDouble;
  if (!isReadable || !isKnownType)
    raise(
        invalidArgument("gradients must be dense or sparse COO tensors of 16-, 32- or 64-bit floats in CPU memory; "
                        "this is a gradient of type " +
                        gradient.toString()));
}

double gradientPower(const at::Tensor& gradient, double normType) {
  if (!gradient.defined()) return 0;
  checkHasPower(gradient);
  const at::Tensor elements = elementsOf(gradient);
  return AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, elements.scalar_type(), "gradientPower", [&] {
    const std::span<const scalar_t> values(elements.const_data_ptr<scalar_t>(), static_cast<size_t>(elements.numel()));
    if (normType == kLargest) return ofValues<Largest>(values);
    return normType == 1 ? ofValues<Magnitude>(values) : ofValues<Square>(values);
  });
}

double combinedPower(std::span<const double> powers, double normType) {
  return normType == kLargest ? combined<Largest>(powers) : combined<Square>(powers);
}

double normOfPower(double power, double normType) { return normType == 2 ? std::sqrt(power) : power; }

void checkNormType(double normType) {
  if (normType != 1 && normType != 2 && normType != kLargest)
    raise(invalidArgument("gradients are clipped by the norm 1, 2 or infinity, not " + std::to_string(normType)));
}

}  // namespace treadle::optim

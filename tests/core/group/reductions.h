#pragma once
// Numbers of every element type that members reduce, and the result by the definition of the reduction, computed in one
// process. Pure.
//
// Numbers differ by rank and by element. Integers wrap around, and floats add and multiply exactly, so the result has
// the same bits in every order of ranks. 16-bit floats add and multiply exactly in float, among up to 32 members, and a
// second rounding of a sum or a product would change many results.

#include <algorithm>
#include <cmath>
#include <complex>
#include <concepts>
#include <cstring>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "treadle/core/group/group.h"
#include "treadle/core/group/half.h"

namespace treadle::test {

// Looks random, and is the same in every run (G. Steele, D. Lea, C. Flood, "Fast splittable pseudorandom number
// generators", 2014).
inline uint64_t bitsOf(int rank, size_t i) {
  uint64_t bits = (static_cast<uint64_t>(rank + 1) << 32U | i) * 0x9E3779B97F4A7C15U;
  bits = (bits ^ bits >> 30U) * 0xBF58476D1CE4E5B9U;
  bits = (bits ^ bits >> 27U) * 0x94D049BB133111EBU;
  return bits ^ bits >> 31U;
}

// Floats whose product is exact: powers of two, and a 3 in every second one.
inline double factorOf(int rank, size_t i) {
  const uint64_t bits = bitsOf(rank, i);
  const double odd = (static_cast<size_t>(rank) + i) % 2 == 0 ? 3 : 1;
  return std::ldexp(bits >> 63U == 0 ? odd : -odd, static_cast<int>(bits % 11) - 5);
}

// By rank; exact but for the division.
inline double reducedInDouble(ReduceOp op, std::span<const double> values) {
  double result = values.front();
  for (const double value : values.subspan(1)) {
    switch (op) {
      case ReduceOp::kSum:
      case ReduceOp::kAverage: result += value; break;
      case ReduceOp::kMin: result = std::min(result, value); break;
      case ReduceOp::kMax: result = std::max(result, value); break;
      case ReduceOp::kProduct: result *= value; break;
    }
  }
  return op == ReduceOp::kAverage ? result / static_cast<double>(values.size()) : result;
}

// `of`: an element of a member. `reduced`: the reduction of an element of all members, by rank.
template <class T>
struct NumbersOf {
  static_assert(std::integral<T>);
  // A product of odd numbers is never 0, whatever wraps around.
  static T of(ReduceOp op, int rank, int /*members*/, size_t i) {
    return static_cast<T>(op == ReduceOp::kProduct ? bitsOf(rank, i) | 1U : bitsOf(rank, i));
  }
  static T reduced(ReduceOp op, std::span<const T> values) {
    if (op == ReduceOp::kMin) return *std::min_element(values.begin(), values.end());
    if (op == ReduceOp::kMax) return *std::max_element(values.begin(), values.end());
    uint64_t all = op == ReduceOp::kProduct ? 1 : 0;
    for (const T value : values) {
      const auto wide = static_cast<uint64_t>(value);
      all = op == ReduceOp::kProduct ? all * wide : all + wide;
    }
    const auto whole = static_cast<T>(all);
    return op == ReduceOp::kAverage ? static_cast<T>(whole / static_cast<T>(values.size())) : whole;
  }
};

// One member decides an element, or none does.
template <>
struct NumbersOf<group::Bool> {
  static group::Bool of(ReduceOp op, int rank, int members, size_t i) {
    const bool decides = i % static_cast<size_t>(members + 1) == static_cast<size_t>(rank);
    return {static_cast<uint8_t>(decides == (op == ReduceOp::kMax))};
  }
  static group::Bool reduced(ReduceOp op, std::span<const group::Bool> values) {
    const auto isTrue = [](group::Bool value) { return value.value != 0; };
    const bool all = std::all_of(values.begin(), values.end(), isTrue);
    const bool any = std::any_of(values.begin(), values.end(), isTrue);
    return {static_cast<uint8_t>(op == ReduceOp::kMax ? any : all)};
  }
};

// Sums of up to 32 numbers are exact: they need five digits more than these numbers.
template <std::floating_point T>
struct NumbersOf<T> {
  static constexpr int kDigits = sizeof(T) == sizeof(float) ? 19 : 48;
  static T of(ReduceOp op, int rank, int /*members*/, size_t i) {
    if (op == ReduceOp::kProduct) return static_cast<T>(factorOf(rank, i));
    constexpr auto kMost = int64_t{1} << kDigits;
    const int64_t whole = static_cast<int64_t>(bitsOf(rank, i) % (2 * kMost)) - kMost;
    return static_cast<T>(std::ldexp(static_cast<double>(whole), -8));
  }
  static T reduced(ReduceOp op, std::span<const T> values) {
    return static_cast<T>(reducedInDouble(op, std::vector<double>(values.begin(), values.end())));
  }
};

// Numbers of all digits between 1/4 and 128, whose sums need more digits than a 16-bit float has. Factors of five
// digits on the first four ranks, powers of two on the others: a float holds the 20 digits of their product.
template <class T>
  requires std::same_as<T, group::Float16> || std::same_as<T, group::BFloat16>
struct NumbersOf<T> {
  static T of(ReduceOp op, int rank, int /*members*/, size_t i) {
    const uint64_t bits = bitsOf(rank, i), digits = op == ReduceOp::kProduct ? 16 : 1024;
    const int most = op == ReduceOp::kProduct ? 0 : 6, exponents = op == ReduceOp::kProduct ? 2 : 9;
    const bool isPower = op == ReduceOp::kProduct && rank >= 4;
    const double mantissa = isPower ? 1 : 1 + static_cast<double>(bits % digits) / static_cast<double>(digits);
    const double value =
        std::ldexp(mantissa, most - static_cast<int>(bits / digits % static_cast<uint64_t>(exponents)));
    return group::rounded<T>(bits >> 63U == 0 ? value : -value);
  }
  static T reduced(ReduceOp op, std::span<const T> values) {
    std::vector<double> wide;
    for (const T value : values) wide.push_back(group::toFloat(value));
    return group::rounded<T>(reducedInDouble(op, wide));
  }
};

// Factors are powers of two, turned by quarters, and in every second one 2 + i. The powers of that have no part that is
// 0, whose sign would depend on the order.
template <class R>
struct NumbersOf<std::complex<R>> {
  static std::complex<R> of(ReduceOp op, int rank, int members, size_t i) {
    if (op != ReduceOp::kProduct)
      return {NumbersOf<R>::of(op, rank, members, 2 * i), NumbersOf<R>::of(op, rank, members, 2 * i + 1)};
    const uint64_t bits = bitsOf(rank, i);
    const double scale = std::ldexp(1, static_cast<int>(bits / 4 % 11) - 5);
    const auto [real, imaginary] =
        (static_cast<size_t>(rank) + i) % 2 == 0 ? std::pair(2 * scale, scale) : std::pair(scale, 0.0);
    const auto a = static_cast<R>(real), b = static_cast<R>(imaginary);
    switch (bits % 4) {
      case 0: return {a, b};
      case 1: return {-b, a};
      case 2: return {-a, -b};
      default: return {b, -a};
    }
  }
  static std::complex<R> reduced(ReduceOp op, std::span<const std::complex<R>> values) {
    std::complex<double> product = values.front();
    std::vector<double> real, imaginary;
    for (const std::complex<R>& value : values) {
      if (!real.empty()) product *= std::complex<double>(value);
      real.push_back(value.real());
      imaginary.push_back(value.imag());
    }
    if (op == ReduceOp::kProduct) return std::complex<R>(product);
    return {static_cast<R>(reducedInDouble(op, real)), static_cast<R>(reducedInDouble(op, imaginary))};
  }
};

using Memory = std::vector<std::byte>;

// Data of all members, and its reduction.
struct Reduction {
  group::DataType type = group::DataType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  std::vector<Memory> inputs;  // by rank
  Memory wanted;

  size_t count() const { return wanted.size() / group::sizeOf(type); }
  std::string name() const { return std::string(group::nameOf(type)) + " (" + std::string(group::nameOf(op)) + ")"; }
  // The first `count` elements of one of them.
  Bytes first(const Memory& memory, size_t count) const { return Bytes(memory).first(count * group::sizeOf(type)); }
};

// Numbers repeat after so many: a prime, so that elements in the wrong place show wherever data is cut.
inline constexpr size_t kPeriod = 1009;

template <class T>
Memory repeated(const std::vector<T>& values, size_t count) {
  Memory memory(count * sizeof(T));
  for (size_t done = 0; done < count; done += values.size())
    std::memcpy(memory.data() + done * sizeof(T), values.data(), std::min(values.size(), count - done) * sizeof(T));
  return memory;
}

template <group::Reducible T>
Reduction reductionOf(ReduceOp op, int members, size_t count) {
  std::vector<std::vector<T>> inputs(static_cast<size_t>(members));
  std::vector<T> wanted;
  for (size_t i = 0; i < std::min(count, kPeriod); ++i) {
    std::vector<T> values;
    for (int rank = 0; rank < members; ++rank) values.push_back(NumbersOf<T>::of(op, rank, members, i));
    for (size_t rank = 0; rank < values.size(); ++rank) inputs[rank].push_back(values[rank]);
    wanted.push_back(NumbersOf<T>::reduced(op, values));
  }
  Reduction all{group::DataTypeOf<T>::kValue, op, {}, repeated(wanted, count)};
  for (const std::vector<T>& input : inputs) all.inputs.push_back(repeated(input, count));
  return all;
}

using NumberTypes =
    std::tuple<group::Float16, group::BFloat16, float, double, int8_t, int16_t, int32_t, int64_t, uint8_t, group::Bool,
               uint16_t, uint32_t, uint64_t, std::complex<float>, std::complex<double>>;

// Calls f(T()) for each element type.
template <class F>
void forEachNumberType(F f) {
  std::apply([&](auto... examples) { (f(examples), ...); }, NumberTypes());
}

// Every type, by every reduction that it has.
inline std::vector<Reduction> allReductions(int members, size_t count) {
  std::vector<Reduction> all;
  forEachNumberType([&]<class T>(T) {
    for (ReduceOp op : {ReduceOp::kSum, ReduceOp::kAverage, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct})
      if (group::checkReduces(group::DataTypeOf<T>::kValue, op).ok()) all.push_back(reductionOf<T>(op, members, count));
  });
  return all;
}

}  // namespace treadle::test

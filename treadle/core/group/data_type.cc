#include "treadle/core/group/data_type.h"

#include <algorithm>
#include <array>
#include <type_traits>

#include "treadle/core/base/check.h"
#include "treadle/core/group/half.h"

namespace treadle::group {
namespace {

// Calls `f` with a value of the C++ type that stands for `type`.
template <class F>
auto withType(DataType type, F f) {
  switch (type) {
    case DataType::kFloat16: return f(Float16{});
    case DataType::kBFloat16: return f(BFloat16{});
    case DataType::kFloat32: return f(float{});
    case DataType::kFloat64: return f(double{});
    case DataType::kInt8: return f(int8_t{});
    case DataType::kInt16: return f(int16_t{});
    case DataType::kInt32: return f(int32_t{});
    case DataType::kInt64: return f(int64_t{});
    case DataType::kUint8: return f(uint8_t{});
    case DataType::kBool: return f(Bool{});
    case DataType::kUint16: return f(uint16_t{});
    case DataType::kUint32: return f(uint32_t{});
    case DataType::kUint64: return f(uint64_t{});
    case DataType::kComplex64: return f(std::complex<float>{});
    case DataType::kComplex128: break;
  }
  return f(std::complex<double>{});
}

template <class T>
inline constexpr bool kIsHalf = std::is_same_v<T, Float16> || std::is_same_v<T, BFloat16>;
template <class T>
inline constexpr bool kIsComplex = std::is_same_v<T, std::complex<float>> || std::is_same_v<T, std::complex<double>>;
// Sums, averages and products in the type itself; minimum and maximum.
template <class T>
inline constexpr bool kHasSums = !kIsHalf<T> && !std::is_same_v<T, Bool>;
template <class T>
inline constexpr bool kHasOrder = !kIsComplex<T>;

// Integers as unsigned ones, whose sums and products may wrap. Those of 16 bits take 32, for C++ would promote them to
// int, whose products may overflow.
template <class T>
auto wrapping(T value) {
  if constexpr (std::is_integral_v<T> && sizeof(T) < sizeof(uint32_t)) {
    return static_cast<uint32_t>(value);
  } else if constexpr (std::is_integral_v<T>) {
    return static_cast<std::make_unsigned_t<T>>(value);
  } else {
    return value;
  }
}

template <class T>
auto comparable(T value) {
  if constexpr (kIsHalf<T>) {
    return toFloat(value);
  } else {
    return value;
  }
}

// A byte that a peer sends is made a truth value, which a C++ bool may hold.
Bool smaller(Bool a, Bool b) { return {static_cast<uint8_t>(a.value != 0 && b.value != 0)}; }
Bool larger(Bool a, Bool b) { return {static_cast<uint8_t>(a.value != 0 || b.value != 0)}; }

template <class T>
T smaller(T a, T b) {
  auto x = comparable(a), y = comparable(b);
  return x != x || x < y ? a : b;
}

template <class T>
T larger(T a, T b) {
  auto x = comparable(a), y = comparable(b);
  return x != x || x > y ? a : b;
}

template <class T, class F>
void combine(T* own, const T* incoming, size_t count, F f) {
  for (size_t i = 0; i < count; ++i) own[i] = f(incoming[i], own[i]);
}

template <class T>
void reduceTyped(ReduceOp op, T* own, const T* incoming, size_t count) {
  if constexpr (kHasOrder<T>) {
    if (op == ReduceOp::kMin) return combine(own, incoming, count, [](T a, T b) { return smaller(a, b); });
    if (op == ReduceOp::kMax) return combine(own, incoming, count, [](T a, T b) { return larger(a, b); });
  }
  if constexpr (kHasSums<T>) {
    if (op == ReduceOp::kProduct)
      return combine(own, incoming, count, [](T a, T b) { return static_cast<T>(wrapping(a) * wrapping(b)); });
    combine(own, incoming, count, [](T a, T b) { return static_cast<T>(wrapping(a) + wrapping(b)); });
  }
}

template <class T>
void divideTyped(T* values, size_t count, int by) {
  for (size_t i = 0; i < count; ++i) {
    if constexpr (std::is_unsigned_v<T>) {
      values[i] = static_cast<T>(values[i] / static_cast<uint64_t>(by));
    } else if constexpr (std::is_integral_v<T>) {
      values[i] = static_cast<T>(int64_t{values[i]} / by);
    } else if constexpr (kIsComplex<T>) {
      values[i] /= static_cast<typename T::value_type>(by);
    } else if constexpr (kHasSums<T>) {
      values[i] /= static_cast<T>(by);
    }
  }
}

// The values of all members in double, a block at a time, which stays in the first cache.
template <class Half>
void reduceHalves(ReduceOp op, std::span<const std::byte* const> members, size_t count, Half* result) {
  std::array<double, 512> wide;
  for (size_t first = 0; first < count; first += wide.size()) {
    const size_t size = std::min(count - first, wide.size());
    const auto forValuesOf = [&](const std::byte* member, auto f) {
      const Half* values = reinterpret_cast<const Half*>(member) + first;
      for (size_t i = 0; i < size; ++i) f(wide[i], double{toFloat(values[i])});
    };
    forValuesOf(members.front(), [](double& all, double value) { all = value; });
    for (const std::byte* member : members.subspan(1)) {
      if (op == ReduceOp::kProduct) {
        forValuesOf(member, [](double& all, double value) { all *= value; });
      } else {
        forValuesOf(member, [](double& all, double value) { all += value; });
      }
    }
    const double by = op == ReduceOp::kAverage ? static_cast<double>(members.size()) : 1;
    for (size_t i = 0; i < size; ++i) result[first + i] = rounded<Half>(wide[i] / by);
  }
}

// Likewise, in the type itself.
template <class T>
void reduceInBlocks(ReduceOp op, std::span<const std::byte* const> members, size_t count, T* result) {
  std::array<T, 4096 / sizeof(T)> all;
  for (size_t first = 0; first < count; first += all.size()) {
    const size_t size = std::min(count - first, all.size());
    const auto valuesOf = [&](const std::byte* member) { return reinterpret_cast<const T*>(member) + first; };
    std::copy_n(valuesOf(members.front()), size, all.data());
    for (const std::byte* member : members.subspan(1)) reduceTyped(op, all.data(), valuesOf(member), size);
    if (op == ReduceOp::kAverage) divideTyped(all.data(), size, static_cast<int>(members.size()));
    std::copy_n(all.data(), size, result + first);
  }
}

}  // namespace

bool isDataType(uint8_t value) {
  return value >= static_cast<uint8_t>(DataType::kFloat16) && value <= static_cast<uint8_t>(DataType::kComplex128);
}

bool isReduceOp(uint8_t value) {
  return value >= static_cast<uint8_t>(ReduceOp::kSum) && value <= static_cast<uint8_t>(ReduceOp::kProduct);
}

size_t sizeOf(DataType type) {
  return withType(type, [](auto example) { return sizeof example; });
}

std::string_view nameOf(DataType type) {
  switch (type) {
    case DataType::kFloat16: return "float16";
    case DataType::kBFloat16: return "bfloat16";
    case DataType::kFloat32: return "float32";
    case DataType::kFloat64: return "float64";
    case DataType::kInt8: return "int8";
    case DataType::kInt16: return "int16";
    case DataType::kInt32: return "int32";
    case DataType::kInt64: return "int64";
    case DataType::kUint8: return "uint8";
    case DataType::kBool: return "bool";
    case DataType::kUint16: return "uint16";
    case DataType::kUint32: return "uint32";
    case DataType::kUint64: return "uint64";
    case DataType::kComplex64: return "complex64";
    case DataType::kComplex128: break;
  }
  return "complex128";
}

std::string_view nameOf(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum: return "sum";
    case ReduceOp::kAverage: return "average";
    case ReduceOp::kMin: return "min";
    case ReduceOp::kMax: return "max";
    case ReduceOp::kProduct: break;
  }
  return "product";
}

Status checkReduces(DataType type, ReduceOp op) {
  const bool wantsOrder = op == ReduceOp::kMin || op == ReduceOp::kMax;
  const bool can = withType(type, [&]<class T>(T) { return wantsOrder ? kHasOrder<T> : kIsHalf<T> || kHasSums<T>; });
  if (can) return {};
  const char* hint = wantsOrder ? "complex numbers have no order" : "convert them to an integer type to count";
  return invalidArgument("elements of type " + std::string(nameOf(type)) + " have no " + std::string(nameOf(op)) +
                         ": " + hint);
}

bool reducesAtOnce(DataType type, ReduceOp op) {
  return (type == DataType::kFloat16 || type == DataType::kBFloat16) && op != ReduceOp::kMin && op != ReduceOp::kMax;
}

DataType partialType(DataType type, ReduceOp op) { return reducesAtOnce(type, op) ? DataType::kFloat32 : type; }

void reduceInto(DataType type, ReduceOp op, void* own, const void* incoming, size_t count) {
  TREADLE_CHECK(!reducesAtOnce(type, op), "values of this type are combined all at once");
  withType(type, [&](auto example) {
    using T = decltype(example);
    reduceTyped(op, static_cast<T*>(own), static_cast<const T*>(incoming), count);
  });
}

void reduceMembers(DataType type, ReduceOp op, std::span<const std::byte* const> members, size_t count, void* result) {
  withType(type, [&](auto example) {
    using T = decltype(example);
    if constexpr (kIsHalf<T>) {
      if (reducesAtOnce(type, op)) return reduceHalves(op, members, count, static_cast<T*>(result));
    }
    reduceInBlocks(op, members, count, static_cast<T*>(result));
  });
}

void divide(DataType type, void* values, size_t count, int by) {
  TREADLE_CHECK(!reducesAtOnce(type, ReduceOp::kAverage), "averages of this type are divided when they are reduced");
  withType(type, [&](auto example) { divideTyped(static_cast<decltype(example)*>(values), count, by); });
}

}  // namespace treadle::group

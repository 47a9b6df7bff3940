#include "treadle/core/group/data_type.h"

#include <type_traits>

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
    case DataType::kUint8: break;
  }
  return f(uint8_t{});
}

// What arithmetic is done in: float for 16-bit floats; unsigned for integers, whose sums may wrap. 16-bit integers
// take 32 bits, for C++ would promote them to int, whose products may overflow.
template <class T>
auto wide(T value) {
  if constexpr (std::is_same_v<T, Float16> || std::is_same_v<T, BFloat16>) {
    return toFloat(value);
  } else if constexpr (std::is_integral_v<T> && sizeof(T) < sizeof(uint32_t)) {
    return static_cast<uint32_t>(value);
  } else if constexpr (std::is_integral_v<T>) {
    return static_cast<std::make_unsigned_t<T>>(value);
  } else {
    return value;
  }
}

template <class T, class W>
T narrow(W value) {
  if constexpr (std::is_same_v<T, Float16>) {
    return toFloat16(value);
  } else if constexpr (std::is_same_v<T, BFloat16>) {
    return toBFloat16(value);
  } else {
    return static_cast<T>(value);
  }
}

// For comparisons and divisions, where the sign counts.
template <class T>
auto ordered(T value) {
  if constexpr (std::is_integral_v<T>) {
    return value;
  } else {
    return wide(value);
  }
}

template <class T>
T smaller(T a, T b) {
  auto x = ordered(a), y = ordered(b);
  return x != x || x < y ? a : b;
}

template <class T>
T larger(T a, T b) {
  auto x = ordered(a), y = ordered(b);
  return x != x || x > y ? a : b;
}

template <class T, class F>
void combine(T* own, const T* incoming, size_t count, F f) {
  for (size_t i = 0; i < count; ++i) own[i] = f(incoming[i], own[i]);
}

template <class T>
void reduceTyped(ReduceOp op, T* own, const T* incoming, size_t count) {
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kAverage:
      return combine(own, incoming, count, [](T a, T b) { return narrow<T>(wide(a) + wide(b)); });
    case ReduceOp::kProduct:
      return combine(own, incoming, count, [](T a, T b) { return narrow<T>(wide(a) * wide(b)); });
    case ReduceOp::kMin: return combine(own, incoming, count, smaller<T>);
    case ReduceOp::kMax: return combine(own, incoming, count, larger<T>);
  }
}

template <class T>
void divideTyped(T* values, size_t count, int by) {
  for (size_t i = 0; i < count; ++i) {
    if constexpr (std::is_integral_v<T>) {
      values[i] = static_cast<T>(int64_t{values[i]} / by);
    } else {
      auto x = wide(values[i]);
      values[i] = narrow<T>(x / static_cast<decltype(x)>(by));
    }
  }
}

}  // namespace

bool isDataType(uint8_t value) {
  return value >= static_cast<uint8_t>(DataType::kFloat16) && value <= static_cast<uint8_t>(DataType::kUint8);
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
    case DataType::kUint8: break;
  }
  return "uint8";
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

void reduceInto(DataType type, ReduceOp op, void* own, const void* incoming, size_t count) {
  withType(type, [&](auto example) {
    using T = decltype(example);
    reduceTyped(op, static_cast<T*>(own), static_cast<const T*>(incoming), count);
  });
}

void divide(DataType type, void* values, size_t count, int by) {
  withType(type, [&](auto example) { divideTyped(static_cast<decltype(example)*>(values), count, by); });
}

}  // namespace treadle::group

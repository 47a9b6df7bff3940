#pragma once
// The element types and reductions of collectives, and their arithmetic over plain memory. Pure functions without
// state; any thread.

#include <complex>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "treadle/core/base/status.h"

namespace treadle::group {

// The values of both enumerations travel on the wire: never renumber.
enum class DataType : uint8_t {
  kFloat16 = 1,
  kBFloat16 = 2,
  kFloat32 = 3,
  kFloat64 = 4,
  kInt8 = 5,
  kInt16 = 6,
  kInt32 = 7,
  kInt64 = 8,
  kUint8 = 9,
  kBool = 10,
  kUint16 = 11,
  kUint32 = 12,
  kUint64 = 13,
  kComplex64 = 14,  // two floats
  kComplex128 = 15,
};

enum class ReduceOp : uint8_t {
  kSum = 1,      // integers wrap around
  kAverage = 2,  // the sum divided by the group's size; integers are cut towards zero
  kMin = 3,      // a NaN wins
  kMax = 4,      // likewise
  kProduct = 5,
};

// A byte; 0 is false. A peer could send values that a C++ bool must not hold; reductions yield 0 and 1.
struct Bool {
  uint8_t value = 0;
};

// 16-bit floats as stored in memory. They are added and multiplied in double or, where partial results travel, in
// float, and the result is rounded once, to nearest even.
struct Float16 {
  uint16_t bits = 0;
};
struct BFloat16 {
  uint16_t bits = 0;
};

bool isDataType(uint8_t value);
bool isReduceOp(uint8_t value);
size_t sizeOf(DataType type);
std::string_view nameOf(DataType type);
std::string_view nameOf(ReduceOp op);

// InvalidArgument: booleans have a minimum (and) and a maximum (or) only, complex numbers have neither.
Status checkReduces(DataType type, ReduceOp op);

// Whether values of the type are combined in one step, in double, and rounded once, where one member has those of all.
// True for sums, averages and products of 16-bit floats: a rounding after each member would change the result.
bool reducesAtOnce(DataType type, ReduceOp op);
// The type of partial results: float32 of values that reduce at once, otherwise the type itself.
DataType partialType(DataType type, ReduceOp op);

// result[i] = the reduction of members[0][i], members[1][i], ..., in this order; kAverage includes its division.
// `result` may be one of the members. All are aligned for the type.
void reduceMembers(DataType type, ReduceOp op, std::span<const std::byte* const> members, size_t count, void* result);

// For types and operations that do not reduce at once: own[i] = incoming[i] op own[i]. kAverage adds, like kSum;
// `divide` completes it. Both are aligned for the type.
void reduceInto(DataType type, ReduceOp op, void* own, const void* incoming, size_t count);

// values[i] /= by.
void divide(DataType type, void* values, size_t count, int by);

// The element type of a C++ type; defined only for types that have one.
template <class T>
struct DataTypeOf {};
// clang-format off
template <> struct DataTypeOf<Float16> { static constexpr DataType kValue = DataType::kFloat16; };
template <> struct DataTypeOf<BFloat16> { static constexpr DataType kValue = DataType::kBFloat16; };
template <> struct DataTypeOf<float> { static constexpr DataType kValue = DataType::kFloat32; };
template <> struct DataTypeOf<double> { static constexpr DataType kValue = DataType::kFloat64; };
template <> struct DataTypeOf<int8_t> { static constexpr DataType kValue = DataType::kInt8; };
template <> struct DataTypeOf<int16_t> { static constexpr DataType kValue = DataType::kInt16; };
template <> struct DataTypeOf<int32_t> { static constexpr DataType kValue = DataType::kInt32; };
template <> struct DataTypeOf<int64_t> { static constexpr DataType kValue = DataType::kInt64; };
template <> struct DataTypeOf<uint8_t> { static constexpr DataType kValue = DataType::kUint8; };
template <> struct DataTypeOf<Bool> { static constexpr DataType kValue = DataType::kBool; };
template <> struct DataTypeOf<uint16_t> { static constexpr DataType kValue = DataType::kUint16; };
template <> struct DataTypeOf<uint32_t> { static constexpr DataType kValue = DataType::kUint32; };
template <> struct DataTypeOf<uint64_t> { static constexpr DataType kValue = DataType::kUint64; };
template <> struct DataTypeOf<std::complex<float>> { static constexpr DataType kValue = DataType::kComplex64; };
template <> struct DataTypeOf<std::complex<double>> { static constexpr DataType kValue = DataType::kComplex128; };
// clang-format on

template <class T>
concept Reducible = requires { DataTypeOf<T>::kValue; };

}  // namespace treadle::group

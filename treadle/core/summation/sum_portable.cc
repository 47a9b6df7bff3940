#include <algorithm>
#include <array>

#include "treadle/core/group/half.h"
#include "treadle/core/summation/sum_kernels.h"

namespace treadle::summation {
namespace {

// How elements of a type are added: in `Wide`.
template <class T>
struct Element {
  using Wide = T;
  static Wide widened(T value) { return value; }
  static T narrowed(Wide value) { return value; }
};
template <class Half>
struct HalfElement {
  using Wide = float;
  static Wide widened(Half value) { return group::toFloat(value); }
  static Half narrowed(Wide value) { return group::toHalf<Half>(value); }
};
template <>
struct Element<group::Float16> : HalfElement<group::Float16> {};
template <>
struct Element<group::BFloat16> : HalfElement<group::BFloat16> {};

// A block at a time, which stays in the first cache.
template <class T>
size_t sumElements(Addends addends, size_t begin, size_t end, std::byte* result) {
  using E = Element<T>;
  std::array<typename E::Wide, 1024> sums;
  for (size_t first = begin; first < end; first += sums.size()) {
    const size_t size = std::min(end - first, sums.size());
    const auto valuesOf = [&](const std::byte* addend) { return reinterpret_cast<const T*>(addend) + first; };
    const T* values = valuesOf(addends.front());
    for (size_t i = 0; i < size; ++i) sums[i] = E::widened(values[i]);
    for (const std::byte* addend : addends.subspan(1)) {
      values = valuesOf(addend);
      for (size_t i = 0; i < size; ++i) sums[i] = static_cast<typename E::Wide>(sums[i] + E::widened(values[i]));
    }
    T* const to = reinterpret_cast<T*>(result) + first;
    for (size_t i = 0; i < size; ++i) to[i] = E::narrowed(sums[i]);
  }
  return end;
}

}  // namespace

// Unsigned, as signed integers may not overflow in C++.
const SumKernels& portableKernels() {
  static constexpr SumKernels kKernels = {
      "portable",           sumElements<group::Float16>, sumElements<group::BFloat16>, sumElements<float>,
      sumElements<double>,  sumElements<uint8_t>,        sumElements<uint16_t>,        sumElements<uint32_t>,
      sumElements<uint64_t>};
  return kKernels;
}

}  // namespace treadle::summation

#pragma once
// The memory of a dense tensor, as core/group takes it.

#include <ATen/core/Tensor.h>

#include <string>

#include "treadle/core/base/buffer.h"
#include "treadle/core/group/data_type.h"

namespace treadle::collective {

// The types that core/group reduces: no 8-bit floats, whose sums overflow, no quantized or packed numbers.
// ArgumentError for others.
group::DataType dataTypeOf(at::ScalarType type);

// "float32", or libtorch's name of a type that core/group does not reduce.
std::string nameOf(at::ScalarType type);
// "[2, 3]".
std::string sizesTextOf(const at::Tensor& tensor);
// "float32 [2, 3]": what members must give alike.
std::string shapeOf(const at::Tensor& tensor);

bool isDenseOnCpu(const at::Tensor& tensor);
// ArgumentError: not a dense tensor on the CPU.
void checkDense(const at::Tensor& tensor);

// The numbers of a tensor in one piece: its own memory where they lie so, else a copy. A parameter may be given: the
// operation is not part of any graph. Not what lies behind a conjugated or negated view, but the numbers themselves.
at::Tensor flatOf(const at::Tensor& tensor);

inline Bytes bytesOf(const at::Tensor& flat) { return {static_cast<const std::byte*>(flat.data_ptr()), flat.nbytes()}; }
inline MutableBytes memoryOf(const at::Tensor& flat) {
  return {static_cast<std::byte*>(flat.data_ptr()), flat.nbytes()};
}

}  // namespace treadle::collective

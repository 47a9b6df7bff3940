#include "treadle/tensor/collective/flat.h"

#include <optional>

#include "treadle/core/base/error.h"

namespace treadle::collective {

namespace {

std::optional<group::DataType> reducibleTypeOf(at::ScalarType type) {
  switch (type) {
    case at::kHalf: return group::DataType::kFloat16;
    case at::kBFloat16: return group::DataType::kBFloat16;
    case at::kFloat: return group::DataType::kFloat32;
    case at::kDouble: return group::DataType::kFloat64;
    case at::kChar: return group::DataType::kInt8;
    case at::kShort: return group::DataType::kInt16;
    case at::kInt: return group::DataType::kInt32;
    case at::kLong: return group::DataType::kInt64;
    case at::kByte: return group::DataType::kUint8;
    case at::kBool: return group::DataType::kBool;
    case at::kUInt16: return group::DataType::kUint16;
    case at::kUInt32: return group::DataType::kUint32;
    case at::kUInt64: return group::DataType::kUint64;
    case at::kComplexFloat: return group::DataType::kComplex64;
    case at::kComplexDouble: return group::DataType::kComplex128;
    default: return std::nullopt;
  }
}

}  // namespace

group::DataType dataTypeOf(at::ScalarType type) {
  if (const auto reducible = reducibleTypeOf(type)) return *reducible;
  raise(invalidArgument(std::string("a tensor of dtype ") + c10::toString(type) + " cannot be reduced"));
}

std::string nameOf(at::ScalarType type) {
  const auto reducible = reducibleTypeOf(type);
  return reducible ? std::string(group::nameOf(*reducible)) : c10::toString(type);
}

std::string sizesTextOf(const at::Tensor& tensor) {
  std::string text = "[";
  for (int64_t dim = 0; dim < tensor.dim(); ++dim) text += (dim == 0 ? "" : ", ") + std::to_string(tensor.size(dim));
  return text + "]";
}

std::string shapeOf(const at::Tensor& tensor) { return nameOf(tensor.scalar_type()) + " " + sizesTextOf(tensor); }

bool isDenseOnCpu(const at::Tensor& tensor) {
  return tensor.defined() && tensor.layout() == at::kStrided && tensor.device().is_cpu();
}

void checkDense(const at::Tensor& tensor) {
  if (!isDenseOnCpu(tensor))
    raise(invalidArgument("collectives take dense tensors on the CPU; sparseAllReduce takes sparse ones (COO)"));
}

at::Tensor flatOf(const at::Tensor& tensor) {
  checkDense(tensor);
  return tensor.detach().resolve_conj().resolve_neg().contiguous();
}

}  // namespace treadle::collective

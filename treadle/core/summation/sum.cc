// Budget: one pass over the memory of each addend and of the result; no allocation, no lock.

#include "treadle/core/summation/sum.h"

#include "treadle/core/base/check.h"
#include "treadle/core/summation/sum_kernels.h"

namespace treadle::summation {
namespace {

using group::DataType;

Kernel kernelOf(const SumKernels& kernels, DataType type) {
  switch (type) {
    case DataType::kFloat16: return kernels.float16;
    case DataType::kBFloat16: return kernels.bfloat16;
    case DataType::kFloat32:
    case DataType::kComplex64: return kernels.float32;
    case DataType::kFloat64:
    case DataType::kComplex128: return kernels.float64;
    case DataType::kInt8:
    case DataType::kUint8: return kernels.int8;
    case DataType::kInt16:
    case DataType::kUint16: return kernels.int16;
    case DataType::kInt32:
    case DataType::kUint32: return kernels.int32;
    case DataType::kInt64:
    case DataType::kUint64: return kernels.int64;
    case DataType::kBool: break;
  }
  return nullptr;
}

// The best that this processor has.
const SumKernels& kernelsHere() {
  static const SumKernels& kernels = avx512Kernels() != nullptr ? *avx512Kernels()
                                     : avx2Kernels() != nullptr ? *avx2Kernels()
                                                                : portableKernels();
  return kernels;
}

bool isComplex(DataType type) { return type == DataType::kComplex64 || type == DataType::kComplex128; }

}  // namespace

void sum(DataType type, Addends addends, size_t count, std::byte* result) {
  const Kernel kernel = kernelOf(kernelsHere(), type);
  TREADLE_CHECK(kernel != nullptr && !addends.empty(), "a sum of nothing, or of booleans");
  const size_t end = isComplex(type) ? 2 * count : count;
  const size_t rest = kernel(addends, 0, end, result);
  if (rest < end) kernelOf(portableKernels(), type)(addends, rest, end, result);
}

std::string_view instructionsOfSums() { return kernelsHere().name; }

}  // namespace treadle::summation

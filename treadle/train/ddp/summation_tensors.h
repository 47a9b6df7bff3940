#pragma once
// The trained parameters of a module as the tensors of a summation service. Pure; any thread.

#include <vector>

#include "treadle/core/summation/service.h"
#include "treadle/tensor/collective/flat.h"
#include "treadle/train/ddp/parameter_list.h"

namespace treadle::ddp {

// By their first names, in the order of the list. ArgumentError: a type that core/group does not reduce.
inline std::vector<SummationTensor> summationTensorsOf(const ParameterList& list) {
  std::vector<SummationTensor> tensors;
  for (size_t i = 0; i < list.trained().size(); ++i) {
    const at::Tensor& parameter = list.trained()[i];
    tensors.push_back({list.trainedNames()[i], collective::dataTypeOf(parameter.scalar_type()),
                       static_cast<uint64_t>(parameter.numel())});
  }
  return tensors;
}

}  // namespace treadle::ddp

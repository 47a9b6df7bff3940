#pragma once
// What a lossy hook has held back of this rank's gradients, by parameter: it is added to the next gradient, so nothing
// is lost for good (S. U. Stich et al. 2018, "Sparsified SGD with memory", S. P. Karimireddy et al. 2019, "Error
// feedback fixes SignSGD and other gradient compression schemes"). What a pass holds back replaces the memory when the
// pass has gone well, and is forgotten otherwise.
//
// Owned by a hook; used by one thread at a time. Memory: one copy of the compressed gradients, two during a pass.

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <vector>

#include "treadle/tensor/optim/named_values.h"
#include "treadle/train/ddp/comm_hook.h"

namespace treadle::ddp {

// float64 for float64, float32 for float32 and 16-bit floats. Nothing for others, which are not compressed.
std::optional<at::ScalarType> dtypeOfErrors(const at::Tensor& parameter);

class ErrorMemory {
 public:
  ErrorMemory() = default;
  // Empty, for these parameters.
  explicit ErrorMemory(const std::vector<HookParameter>& parameters);

  // A pass begins whose gradients, and what is held back of them, are multiplied by `lossScale`. The memory is kept
  // without it, so that another scale later does not change it.
  void beginPass(double lossScale);
  // This pass neither adds what is in memory nor changes it.
  void freeze() { isFrozen_ = true; }
  // A new tensor of the shape of `gradient`: the gradient and what is in memory, of dtypeOfErrors.
  at::Tensor withError(size_t parameter, const at::Tensor& gradient) const;
  bool has(size_t parameter) const { return errors_[parameter].defined(); }
  // What the pass holds back of that sum; it is taken over. Undefined: nothing. The last call of a pass counts.
  void hold(size_t parameter, at::Tensor error);
  // The pass has gone well. Parameters that no rank used keep what they have, as their sums were sent for nothing.
  void commit(const std::vector<bool>& isUsed);

  // Tensors with the shape of the parameter, of dtypeOfErrors, by prefix + name; for those that have one.
  void save(optim::NamedTensors& state, const std::string& prefix) const;
  // Takes them out of `state`. ArgumentError: other shapes, or no numbers.
  void load(optim::NamedTensors& state, const std::string& prefix);

 private:
  std::vector<HookParameter> parameters_;
  std::vector<at::Tensor> errors_;               // by parameter; undefined: 0
  std::vector<std::optional<at::Tensor>> held_;  // by the pass
  double lossScale_ = 1;
  bool isFrozen_ = false;  // for one pass
};

}  // namespace treadle::ddp

#pragma once
// The part of a distributed optimizer that lives with the parameters of one worker: one libtorch optimizer
// per parameter. Steps of several distributed optimizers over one parameter exclude each other, parameter by
// parameter.
//
// Note [Alias]
// An optimizer steps `parameter.variable_data()`, which shares the parameter's memory but not its version
// counter. An in-place step on the parameter itself would make the pending backward passes of other contexts
// fail with "modified by an inplace operation".

#include <ATen/core/Tensor.h>

#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "treadle/core/base/mutex.h"
#include "treadle/core/base/unique_function.h"

namespace torch::optim {
class Optimizer;
}

namespace treadle::optim {

// One lock per parameter of this worker, held while an optimizer steps it. One table per worker; any thread.
class ParameterLocks {
 public:
  // The lock of the tensor object behind `parameter`, made when there is none. Who holds it keeps the tensor
  // alive, so that its address cannot come to mean another.
  std::shared_ptr<std::mutex> lockOf(const at::Tensor& parameter);

 private:
  Mutex mutex_;
  // Weak: a lock goes with the last optimizer of its parameter.
  std::unordered_map<c10::TensorImpl*, std::weak_ptr<std::mutex>> locks_ TREADLE_GUARDED_BY(mutex_);
};

// The optimizers of one distributed optimizer on this worker. Any thread may step; two steps at once exclude
// each other parameter by parameter, in no particular order of the two.
class ParameterOptimizers {
 public:
  // An optimizer for the parameter of this index, whose alias is given.
  using Make = UniqueFunction<std::unique_ptr<torch::optim::Optimizer>(std::vector<at::Tensor>, size_t)>;
  using GradientOf = UniqueFunction<at::Tensor(const at::Tensor&)>;
  using Visit = UniqueFunction<void(size_t, torch::optim::Optimizer&)>;

  ParameterOptimizers(ParameterLocks& locks, std::vector<at::Tensor> parameters, Make& make);
  ~ParameterOptimizers();
  ParameterOptimizers(ParameterOptimizers&&) noexcept;

  // Steps each parameter for which `gradientOf` has a defined gradient, of the parameter's shape, when `beforeEach`
  // has seen its optimizer; throws what the optimizer throws, when the parameters before it have been stepped.
  // StateError for a parameter that has other memory than when the optimizer was made: Module::to gives it some.
  void step(GradientOf& gradientOf, Visit& beforeEach);
  // Each optimizer by the index of its parameter, while nobody steps it.
  void each(Visit& visit);
  std::vector<at::Tensor> parameters() const;  // by index
  // New optimizers for all parameters, or none when `make` throws.
  void replace(Make& make);

 private:
  struct Slot;
  std::vector<std::unique_ptr<Slot>> slots_;
};

}  // namespace treadle::optim

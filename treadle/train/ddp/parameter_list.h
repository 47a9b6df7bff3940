#pragma once
// The parameters of a module that DDP averages, and those that it leaves alone. A tensor that several modules share has
// several names and is one parameter. Immutable; any thread.

#include <torch/nn/module.h>

#include <string>
#include <vector>

#include "treadle/core/base/status.h"

namespace treadle::ddp {

class ParameterList {
 public:
  // The parameters of `module` and its submodules, in the order of their first names. Those that require a gradient now
  // are trained: they are known by their place among these.
  explicit ParameterList(const torch::nn::Module& module);

  const std::vector<at::Tensor>& trained() const { return trained_; }
  const std::vector<at::Tensor>& frozen() const { return frozen_; }
  // "'output.weight'", or "'embedding.weight' (also 'output.weight')" if it is shared.
  const std::string& nameOf(size_t trained) const { return names_[trained]; }
  // "output.weight": the first name of each that is trained.
  const std::vector<std::string>& trainedNames() const { return firstNames_; }
  // The places of those with these first names. InvalidArgument: not each trained parameter once.
  Result<std::vector<size_t>> placesOf(const std::vector<std::string>& firstNames) const;

  // FailedPrecondition, naming the first parameter that requires a gradient now and did not when the list was made, or
  // the other way round, or has another dtype.
  Status checkUnchanged() const;
  // The same for dtypes alone: libtorch drops the hooks of a parameter whose dtype changes.
  Status checkDtypes() const;

 private:
  std::vector<at::Tensor> trained_, frozen_;
  std::vector<at::ScalarType> dtypes_;  // of those trained
  std::vector<std::string> names_, firstNames_, frozenNames_;
};

}  // namespace treadle::ddp

#pragma once
// The parameters of a module that DDP averages, and those that it leaves alone. A tensor that several modules share has
// several names and is one parameter. Immutable; any thread. Checks also look at the module as it is now.

#include <torch/nn/module.h>

#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "treadle/core/base/status.h"

namespace treadle::ddp {

class ParameterList {
 public:
  // The parameters of `module` and its submodules, in the order of their first names. Those that require a gradient now
  // are trained: they are known by their place among these.
  // `owner`: for messages.
  explicit ParameterList(const torch::nn::Module& module, std::string owner = "DistributedDataParallel");

  const std::vector<at::Tensor>& trained() const { return trained_; }
  const std::vector<at::Tensor>& frozen() const { return frozen_; }
  // "'output.weight'", or "'embedding.weight' (also 'output.weight')" if it is shared.
  const std::string& nameOf(size_t trained) const { return names_[trained]; }
  // Nothing: it is none of those trained.
  std::optional<size_t> placeOf(const at::Tensor& parameter) const;
  // "output.weight": the first name of each that is trained.
  const std::vector<std::string>& trainedNames() const { return firstNames_; }
  // The places of those with these first names. InvalidArgument: not each trained parameter once.
  Result<std::vector<size_t>> placesOf(const std::vector<std::string>& firstNames) const;

  // FailedPrecondition: any of the checks below fails, or a trained parameter requires no gradient any more. Names the
  // first parameter.
  Status checkUnchanged() const;
  // FailedPrecondition: a parameter has another dtype. libtorch has dropped its hooks.
  Status checkDtypes() const;
  // FailedPrecondition: a parameter of the module requires a gradient now, and is not trained. It was unfrozen, or is
  // new in the module. Costs a walk over the module.
  Status checkNoOtherIsTrained() const;
  // FailedPrecondition: likewise, and no trained one requires a gradient any more: no hook would notice the pass.
  Status checkPassIsNoticed() const;

 private:
  std::string remedy() const;

  std::weak_ptr<const torch::nn::Module> module_;  // null if no shared_ptr owns it
  const std::string owner_;
  std::vector<at::Tensor> trained_, frozen_;
  std::unordered_map<const c10::TensorImpl*, size_t> places_;  // of those trained
  std::vector<at::ScalarType> dtypes_;                         // of those trained
  std::vector<std::string> names_, firstNames_;
};

}  // namespace treadle::ddp

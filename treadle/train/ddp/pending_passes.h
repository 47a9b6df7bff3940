#pragma once
// The passes of this rank whose gradients have not been averaged, and their weights. The gradients are in `.grad`, or
// in one context; a pass elsewhere begins a new count. Gradients that were cleared do not count any more.
//
// Owned by a reducer, and used under its lock.

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

#include "treadle/tensor/autograd/pass.h"
#include "treadle/train/ddp/divisor.h"

namespace treadle::ddp {

class PendingPasses {
 public:
  // `parameters` outlive it.
  PendingPasses(const std::vector<at::Tensor>& parameters, Divisor divisor);

  // Of the next pass that has a batch. FailedPrecondition: the divisor is not kWeights. InvalidArgument: negative or
  // not finite.
  Status setWeight(double weight);

  // A pass begins; null for a local one.
  void begin(const autograd::Pass* distributed);
  // It has a batch, which counts once. FailedPrecondition: setWeight was not called for it.
  Status addBatch();
  // FailedPrecondition: averages are there, which this divisor would count once for each rank.
  Status checkMayAverage() const;
  // Gradients have become averages, for this pass and those before it.
  void averaged();
  // It is over, well or badly.
  void end();

  // How many have had a batch, this one too.
  size_t count() const { return count_; }
  double weight() const { return weight_; }
  // Between passes: forgets those whose gradients were cleared since.
  void forgetCleared();

 private:
  // A gradient as it was at the end of the last local pass. An address alone could come to mean another tensor.
  using SeenGradient = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;

  void forget();

  const std::vector<at::Tensor>& parameters_;
  const Divisor divisor_;
  std::optional<double> nextWeight_;
  std::optional<int64_t> context_;  // nothing: the gradients are in `.grad`
  std::vector<SeenGradient> seen_;
  bool isCounted_ = false;  // the batch of the pass that is under way
  size_t count_ = 0;
  double weight_ = 0;
  bool holdsAverages_ = false;  // beside gradients that are pending
};

}  // namespace treadle::ddp

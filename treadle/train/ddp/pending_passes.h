#pragma once
// The passes of this rank whose gradients have not been averaged, and their weights. The gradients are in `.grad`, or
// in one context; a pass elsewhere begins a new count. Gradients that were cleared do not count any more.
//
// A sum of gradients whose passes are not known would get a wrong weight. So it also notices gradients that no pending
// pass has made: averages, those of passes before one elsewhere, and what a program has put in their place.
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

  // The weight of the next pass that has a batch. FailedPrecondition: the divisor is not kWeights. InvalidArgument:
  // negative or not finite.
  Status setWeight(double weight);
  void dropWeight() { nextWeight_.reset(); }

  // Between passes: the first gradient of one is about to be added to what `.grad` of the parameter has. Where that is
  // sparse and the gradient is not, `.grad` becomes another tensor, and what was there counts all the same.
  void beforeGradient(size_t parameter, const at::Tensor& gradient);
  // A pass begins, with the gradient of the parameter `arrived` unless it has no batch; `distributed` is null for a
  // local one.
  void begin(const autograd::Pass* distributed, std::optional<size_t> arrived);
  // The pass has a batch, which counts once. FailedPrecondition: setWeight was not called for it.
  Status addBatch();
  // FailedPrecondition: gradients are there that no pending pass has made, and the divisor is not kWorldSize or this
  // rank is in a guard of join(): ranks without a batch do not add what others have left there.
  Status checkMayAverage(bool isInJoin) const;
  // Gradients have become averages, for this pass and those before it.
  void averaged();
  // The pass is over. Gradients of a failed one stay in `.grad`; a context in which one has failed is of no use.
  void end(bool hasFailed);

  // The number of passes that have had a batch, this one too, and the sum of their weights.
  size_t count() const { return count_; }
  double weight() const { return weight_; }
  // Between passes: forgets those whose gradients were cleared since.
  void forgetCleared();

 private:
  // A gradient as it was at the end of the last local pass. An address alone could come to mean another tensor.
  using SeenGradient = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;

  const c10::TensorImpl* seen(size_t parameter) const;
  bool isAsSeen(size_t parameter) const;
  bool wereChanged(std::optional<size_t> arrived) const;
  void forget();

  const std::vector<at::Tensor>& parameters_;
  const Divisor divisor_;
  std::optional<double> nextWeight_;
  std::optional<int64_t> context_;  // nothing: the gradients are in `.grad`
  std::vector<SeenGradient> seen_;  // of each parameter; empty: none
  std::optional<size_t> turned_;    // the parameter whose gradient has become another tensor since, of the same passes
  bool holdsOthers_ = false;        // gradients that no pending pass has made are there
  size_t count_ = 0;
  double weight_ = 0;
  bool isCounted_ = false;  // the batch of the pass that is under way
};

}  // namespace treadle::ddp

#pragma once
// The base of lossy hooks with error feedback: each rank adds what earlier passes have held back of its gradients,
// sends a part of the sum, and holds back the rest. So in each pass, for each rank: sent + held back = gradient + held
// back before. The sum over passes of the averages, and the mean of what the ranks still hold back, is what one process
// adds up.
//
// What is held back belongs to the parameters, not to the buckets, and to the gradients before the divisor: a weight
// counts in the pass that sends it, and so does a learning rate, as in PowerSGD (Stich's memory has steps). It changes
// only if a pass goes well on this rank and its averages are finite. So a gradient that is infinite or NaN, as a loss
// scale makes them, arrives as such on all ranks and leaves no trace; so does a pass that fails. An infinity in another
// module of a step is not noticed. It also stays as it is in passes that a rank without a batch makes under
// DistributedDataParallel::join.

#include <string>
#include <utility>

#include "treadle/tensor/optim/distributed_optimizer.h"
#include "treadle/train/ddp/error_memory.h"

namespace treadle {

class ErrorFeedbackHook : public CommHook {
 public:
  // The scale of the losses in passes that begin from now on: what is held back is kept without it, so that another
  // scale does not spoil it. Call it before each pass, with GradScaler::currentScale(). ArgumentError: not positive, or
  // not finite.
  void setLossScale(double scale);

  // To be saved with the state of an optimizer, by each rank: the ranks hold back different tensors. Tensors are
  // copied. "top_k.error.output.weight" is what a TopKHook holds back of that parameter. Options are not in it. Between
  // passes.
  OptimizerState state() const;
  // Call it before the DistributedDataParallel is constructed, which checks it: ArgumentError there, on all ranks, for
  // unknown names, other shapes and what must be the same on all ranks. StateError while one has the hook.
  void load(const OptimizerState& state);

  void bind(const ProcessGroup& group, const std::vector<HookParameter>& parameters) final;
  void beginPass() final;
  void beginShadowPass() final;
  void passAveraged(const std::vector<bool>& isUsed) final;

 protected:
  explicit ErrorFeedbackHook(std::string prefix) : prefix_(std::move(prefix)) {}

  ddp::ErrorMemory& memory() { return memory_; }
  // Adds what is held back of these parameters, which are averaged as they are: a state of other options may have it.
  void addErrors(const ddp::Bucket& bucket, const std::vector<size_t>& positions);
  // Of averages of the present pass. Nothing of the pass is kept if some are not finite.
  void noteAverage(const at::Tensor& average);

  // What a hook has besides, which is kept by the same rules. Names of the state begin with `prefix`.
  virtual void reset(const ProcessGroup& /*group*/, const std::vector<HookParameter>& /*parameters*/) {}
  virtual void saveRest(OptimizerState& /*state*/, const std::string& /*prefix*/) const {}
  virtual void loadRest(OptimizerState& /*state*/, const std::string& /*prefix*/) {}
  virtual void beginRest() {}
  virtual void commitRest(const std::vector<bool>& /*isUsed*/) {}

 private:
  const std::string prefix_;  // "top_k."
  OptimizerState loaded_;     // until parameters are known
  bool isBound_ = false;
  ddp::ErrorMemory memory_;
  double lossScale_ = 1;
  bool isFinite_ = true;
};

}  // namespace treadle

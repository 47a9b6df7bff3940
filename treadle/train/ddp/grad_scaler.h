#pragma once
// Scales the loss so that small gradients of float16 computations do not become zero, and takes the scale out of the
// gradients before a step. A step whose gradients overflowed is skipped, and the scale is lowered; after many steps
// without overflow it is raised (P. Micikevicius et al., "Mixed Precision Training", 2018, section 3.2). The rules are
// those of torch's GradScaler. Used by one thread at a time.
//
//   context.backward({scaler.scale(loss)});
//   scaler.unscale(optimizer, context);           // only if something needs the true gradients: clipping
//   clipGradNorm(optimizer, context, ddp, 1.0);
//   scaler.step(optimizer, context);
//   scaler.update();
//
// All ranks must skip the same steps. In plain passes averaging spreads infinities and NaN, so ranks find the same if
// all gradients of the optimizer are averages and the scales are equal. That the scales are equal is checked when the
// scaler is made and when it loads a state; after that they change alike on all ranks. In distributed passes each rank
// also has gradients of its own, so `unscale` asks all ranks.

#include <torch/optim/optimizer.h>

#include <map>

#include "treadle/core/group/group.h"
#include "treadle/tensor/optim/distributed_optimizer.h"

namespace treadle {

// Must be the same on all ranks.
struct GradScalerOptions {
  double initialScale = 65536;  // powers of two, like the factors, change no bits of a gradient
  double growthFactor = 2;      // after `growthInterval` steps in a row without overflow, unless that is infinite
  double backoffFactor = 0.5;   // after a step with overflow
  int64_t growthInterval = 2000;
  double minScale = 1;          // the scale is not lowered further; at least the smallest normal float32
  int64_t maxSkipsInARow = 50;  // `update` throws after so many: lowering the scale does not help
};

class GradScaler {
 public:
  // For one process, or for ranks that agree otherwise. ArgumentError: options out of range.
  explicit GradScaler(GradScalerOptions options = {});
  // Every member of the group makes one. Returns when all have; ArgumentError on all ranks, with their numbers, if
  // their options differ. If the options of one rank are out of range, the others throw StateError with its number. It
  // exchanges 72 bytes for each rank, as does `load`; `unscale` and `step` with a context exchange one byte.
  explicit GradScaler(ProcessGroup group, GradScalerOptions options = {});

  // loss x scale, of the loss's shape: a float16 or bfloat16 loss without dimensions becomes float32. ArgumentError for
  // a tensor that is not floating-point.
  at::Tensor scale(const at::Tensor& loss) const;

  // Multiplies the gradients in `.grad` by 1 / scale (computed in float64, rounded to float32), in place. Returns
  // whether all are finite then; a step will be skipped if not. Without gradients it is true. StateError: already done
  // since the last update. ArgumentError for gradients of float16, before any is changed.
  bool unscale(torch::optim::Optimizer& optimizer);
  // The same for the gradients of the optimizer's parameters in `context`, on all workers; false on all ranks if those
  // of any rank are not finite. A failure on one rank is StateError with its number on the others; drop the context
  // then. Throws what calls and group operations throw.
  bool unscale(DistributedOptimizer& optimizer, const AutogradContext& context);

  // Unscales, if that was not done, and steps if all gradients are finite; returns whether it stepped. StateError: a
  // second step before `update`.
  bool step(torch::optim::Optimizer& optimizer);
  bool step(DistributedOptimizer& optimizer, const AutogradContext& context);

  // Ends the iteration, after the steps of all optimizers: the scale changes by what they found. StateError if nothing
  // was unscaled since the last update; and after maxSkipsInARow, when the scale was lowered all the same, so that the
  // caller may go on.
  void update();

  double currentScale() const { return state_.scale; }
  // "grad_scaler.scale", "grad_scaler.growth_tracker" and "grad_scaler.skips_in_a_row", to be saved with the state of
  // an optimizer. Options are not in it.
  OptimizerState state() const;
  // Call it between update and scale, on all ranks. ArgumentError on all ranks if the states differ, and on a rank
  // whose state has a missing or unknown name, a scale that is not positive and finite, or a negative count; the others
  // then throw StateError with its number. Nothing changes on any rank.
  void load(const OptimizerState& state);

 private:
  struct State {
    float scale = 1;
    int64_t growthTracker = 0, skipsInARow = 0;
  };
  // Of an optimizer since the last update. One that is not there is ready.
  struct Found {
    bool finite = true, stepped = false;
  };
  // An optimizer, and the context of a distributed one.
  using Key = std::pair<const void*, int64_t>;

  static State parsed(OptimizerState named);
  void agree(const State& state, const Status& own) const;
  double inverse() const;
  bool unscaleEverywhere(DistributedOptimizer& optimizer, const AutogradContext& context) const;
  template <class Unscale>
  bool unscaleOnce(Key key, Unscale unscale);
  template <class Unscale, class Step>
  bool stepOnce(Key key, Unscale unscale, Step step);

  ProcessGroup group_;  // may mean none
  GradScalerOptions options_;
  State state_;
  std::map<Key, Found> found_;
};

}  // namespace treadle

#pragma once
// Asynchronous data-parallel training (Asynchronous Parallel, as in Jiang et al., OSDI 2020, section 4.2): each worker
// takes steps at its own pace, by an optimizer of its own, and nobody waits for a slow one. The machines of an
// asynchronous summation service keep the latest parameters: a worker gives them what its step has changed, and takes
// what they have then, with the changes of all workers that have come.
//
//   treadle::AsynchronousParameters shared(worker, *model, {.staleness = 8});
//   for (const Batch& batch : batchesOfThisWorker) {
//     optimizer.zero_grad();
//     lossOf(model->forward(batch.input), batch.target).backward();
//     optimizer.step();
//     shared.exchange();
//   }
//
// With n workers the parameters move n times as far per step as with one of them alone, so the learning rate of one
// worker is often too large. What optimizers keep, buffers and frozen parameters stay those of each worker. Load a
// checkpoint before: later it counts as a change, of each worker that loads it. Small changes of 16-bit parameters are
// lost in rounding: train in float32.

#include <torch/nn/module.h>

#include <exception>
#include <vector>

#include "treadle/core/summation/service.h"
#include "treadle/train/ddp/parameter_list.h"

namespace treadle {

// One thread at a time. Its parameters are those of the module that require a gradient when it is made.
class [[nodiscard]] AsynchronousParameters {
 public:
  // On every worker of the service, with modules alike; by default on all workers of the job, whose servers take part
  // by themselves. `options.asynchronous` is set. Returns when the parameters here are the latest ones: those of the
  // first worker, with what has changed since. ArgumentError: no parameter requires a gradient, or one has a type
  // without a sum; throws what SummationService::make and `exchange` throw.
  AsynchronousParameters(summation::Job& worker, const torch::nn::Module& module, SummationOptions options = {});
  // This worker leaves, and the others go on. Where an exception is the reason, the service fails on all machines, as
  // the rest of this worker's data is missing. Throws nothing.
  ~AsynchronousParameters();
  AsynchronousParameters(const AsynchronousParameters&) = delete;
  AsynchronousParameters& operator=(const AsynchronousParameters&) = delete;

  // Gives what has changed here since the last call, and replaces the parameters by the latest ones; waits for them,
  // and with a bounded staleness for workers that are too far behind. A lost server delays it. Throws TimeoutError
  // naming these workers, PeerLostError naming a lost one, StateError naming a parameter that was replaced, unfrozen or
  // added. Whatever it throws, the service has failed on all machines then, as nobody knows which changes the others
  // have; later calls throw too. The parameters are as they were, unless writing to them failed.
  void exchange();

 private:
  void sumAndTake();
  template <class F>
  void orFail(F f);

  const ddp::ParameterList list_;
  // By parameter, on the CPU: what was the latest one at the last call, where the sums change it. Outlives them.
  std::vector<at::Tensor> latest_;
  SummationService service_;
  bool hasFailed_ = false;
  const int exceptions_ = std::uncaught_exceptions();  // when it was made
};

}  // namespace treadle

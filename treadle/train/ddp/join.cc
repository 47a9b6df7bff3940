#include "treadle/train/ddp/join.h"

#include <utility>

#include "treadle/core/base/error.h"
#include "treadle/train/ddp/distributed_data_parallel.h"
#include "treadle/train/ddp/reducer.h"
#include "treadle/train/ddp/sync_batch_norm.h"

namespace treadle::ddp {
Join::Join(std::shared_ptr<Reducer> reducer, const torch::nn::Module& module, std::function<void()> step,
           UnevenInputs mode)
    : step_(std::move(step)) {
  if (!step_)
    raise(invalidArgument(
        "join() needs a function that makes a step of the optimizer, for passes for which this rank has no batch"));
  refuseSyncBatchNorm(module, "join()");
  reducer->openJoin(mode);
  reducer_ = std::move(reducer);
}

Join::~Join() {
  if (!reducer_) return;
  try {
    reducer_->closeJoin();
  } catch (...) {}  // a destructor must not throw; the others' passes fail when they find this rank in no guard
}

bool Join::isOver() const { return !reducer_ || reducer_->isJoinOver(); }

void Join::finish() {
  while (!isOver()) {
    reducer_->checkAverages("finish()");
    reducer_->endInputs();
    reducer_->clearAverages();
    skipPass(*reducer_, nullptr);
    if (!isOver()) step_();
  }
  if (!reducer_) return;  // it has ended before, or in `step`
  reducer_->clearAverages();
  std::exchange(reducer_, nullptr)->closeJoin();
}

}  // namespace treadle::ddp

// The functions of the reducer that a guard of join() calls.

#include "treadle/core/base/error.h"
#include "treadle/train/ddp/reducer.h"

namespace treadle::ddp {

void Reducer::openJoin(UnevenInputs mode) {
  awaitAverages();
  MutexLock lock(mutex_);
  checkNoPass("join");
  throwIfError(join_.open(mode));
}

void Reducer::closeJoin() {
  MutexLock lock(mutex_);
  const bool isOver = join_.isOver();
  join_.close();
  if (!isOver) abandonGroup(group_, "has left a guard of join() before finish() had ended well", failure_);
}

void Reducer::endInputs() {
  MutexLock lock(mutex_);
  join_.inputsEnd();
}

bool Reducer::isJoinOver() {
  MutexLock lock(mutex_);
  return join_.isOver();
}

void Reducer::clearAverages() {
  awaitAverages();
  MutexLock lock(mutex_);
  pending_.forgetCleared();
  if (pending_.count() == 0) clearGradients();
}

void Reducer::clearGradients() {
  for (const at::Tensor& parameter : list_.trained()) parameter.mutable_grad() = at::Tensor();
}

}  // namespace treadle::ddp

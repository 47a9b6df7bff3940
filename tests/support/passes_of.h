#pragma once
// What a worker has of a context, and of the backward passes of it that are under way there.

#include <treadle/autograd.h>

#include <algorithm>

#include "treadle/tensor/autograd/interceptor.h"

namespace treadle::test {

// NotFoundError: nothing of it has come there, or it has ended.
inline autograd::ContextPtr contextOf(Worker& worker, const AutogradContext& context) {
  return valueOrThrow(autograd::interceptorOf(worker).contexts().find(context.id()));
}

// Whether a pass that is under way there has failed, as far as this worker has heard.
inline bool knowsOfAFailure(Worker& worker, const AutogradContext& context) {
  const autograd::ContextPtr there = contextOf(worker, context);
  MutexLock lock(there->mutex);
  return there->live && there->live->pass && !there->live->pass->status().ok();
}

}  // namespace treadle::test

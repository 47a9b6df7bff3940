#pragma once
// Joining a job with tensors: the core's worker with tensors' codecs, distributed autograd and optimizers.

#include "treadle/core/worker/worker.h"
#include "treadle/tensor/autograd/options.h"

namespace treadle {

// Like Worker::join. `defaults` are for autograd contexts that say nothing else. StateError when they ask for what is
// not there.
std::shared_ptr<Worker> join(JoinOptions options, AutogradOptions defaults = {});

}  // namespace treadle

#pragma once
// Joining a job with tensors: the core's worker with tensors' codecs, distributed autograd and optimizers.
// The one place where core and tensor meet; nothing registers itself, so a program that calls Worker::join
// has none of it.

#include "treadle/core/worker/worker.h"
#include "treadle/tensor/autograd/options.h"

namespace treadle {

// Like Worker::join: returns when all workers of the job are there, and throws what that throws. All of them
// should be made by this function: one without tensors lacks the functions that backward passes and
// optimizers call. The names of functions that begin with "treadle." are taken.
//
// `defaults` are those of the autograd contexts that this worker makes: AutogradMode::kFast is what PyTorch's RFC calls
// all_requires_grad. Workers of one job may differ in them. Any thread; several workers may be joined in one process.
std::shared_ptr<Worker> join(JoinOptions options, AutogradOptions defaults = {});

}  // namespace treadle

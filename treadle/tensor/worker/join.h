#pragma once
// Joins a job with tensors: the core's worker plus the codecs of tensors, distributed autograd and optimizers. Core and
// tensor meet only here. Nothing registers itself, so a program that calls Worker::join gets none of it.

#include "treadle/core/worker/worker.h"
#include "treadle/tensor/autograd/options.h"

namespace treadle {

// Like Worker::join: returns when all workers of the job are there, and throws the same. All of them should be made by
// this function: a worker without tensors lacks the functions that backward passes and optimizers call. Function names
// that begin with "treadle." are reserved.
//
// `defaults` apply to the autograd contexts that this worker makes: AutogradMode::kFast is what PyTorch's RFC calls
// all_requires_grad. Workers of one job may use different defaults. Any thread; several workers may be joined in one
// process.
std::shared_ptr<Worker> join(JoinOptions options, AutogradOptions defaults = {});

}  // namespace treadle

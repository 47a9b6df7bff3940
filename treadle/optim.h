#pragma once
// Optimizers over parameters that live anywhere in the job: treadle::DistributedOptimizer steps each parameter on its
// owner with the gradients of an autograd context. Every worker made by treadle::join has libtorch's optimizers except
// LBFGS.

#include "treadle/autograd.h"
#include "treadle/tensor/nn/remote_child.h"
#include "treadle/tensor/optim/distributed_optimizer.h"

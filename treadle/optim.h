#pragma once
// Optimizers over parameters that live anywhere in the job: treadle::DistributedOptimizer steps each
// parameter on its owner with the gradients of an autograd context. libtorch's optimizers but LBFGS are
// there on every worker made by treadle::join.

#include "treadle/autograd.h"
#include "treadle/tensor/nn/remote_child.h"
#include "treadle/tensor/optim/distributed_optimizer.h"

#pragma once
// Optimizers over parameters that live anywhere in the job.

#include "treadle/autograd.h"
#include "treadle/tensor/optim/distributed_optimizer.h"

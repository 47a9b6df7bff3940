#pragma once
// Distributed autograd: one backward pass across workers. Make a treadle::AutogradContext, call functions on
// other workers with tensors, and call its backward(): gradients are then in the context on every worker that
// has leaves. The design is that of PyTorch's RFC on RPC-based model parallelism (pytorch/pytorch issue 23110), in both
// of its modes (AutogradMode).

#include "treadle/rpc.h"
#include "treadle/tensor/autograd/autograd_context.h"
#include "treadle/tensor/autograd/describe.h"

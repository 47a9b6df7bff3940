#pragma once
// Distributed autograd: one backward pass across workers. Make a treadle::AutogradContext, call functions on other
// workers with tensors, then call its backward(). After that the context holds the gradients, on every worker that owns
// leaves. The design follows PyTorch's RFC on RPC-based model parallelism (pytorch/pytorch issue 23110), with both of
// its modes (AutogradMode).

#include "treadle/rpc.h"
#include "treadle/tensor/autograd/autograd_context.h"
#include "treadle/tensor/autograd/checkpoint.h"
#include "treadle/tensor/autograd/describe.h"

#pragma once
// Distributed autograd: one backward pass across workers.

#include "treadle/rpc.h"
#include "treadle/tensor/autograd/autograd_context.h"

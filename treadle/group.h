#pragma once
// Process groups and collective operations on tensors.

#include "treadle/rpc.h"
#include "treadle/tensor/collective/collectives.h"

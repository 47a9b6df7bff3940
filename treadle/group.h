#pragma once
// Process groups and collective operations on tensors: treadle::Group::make, then allReduce, broadcast and
// barrier, each of which returns a Future. Plain memory goes the same ways with <treadle/core.h> alone.

#include "treadle/rpc.h"
#include "treadle/tensor/collective/collectives.h"

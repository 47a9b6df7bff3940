#pragma once
// Process groups and collective operations on tensors: treadle::ProcessGroup::make, then allReduce, pushPull, reduce,
// reduceScatter, allGather, gather, scatter, allToAll, broadcast, barrier, send, recv and sparseAllReduce, each of
// which returns a Future. The same operations on plain memory, but the last, need only <treadle/core.h>.

#include "treadle/rpc.h"
#include "treadle/tensor/collective/collectives.h"

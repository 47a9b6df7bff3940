#pragma once
// The buffers of replicas in one process: each has its own during a pass. Functions without state, called with grad
// mode off.

#include <vector>

#include "treadle/train/ddp/buffer_sync.h"
#include "treadle/train/ddp/module_clone.h"

namespace treadle::ddp {

// The replica's become those of the module.
void resetBuffers(std::vector<ClonedTensor>& buffers, size_t replica);

// The module's become, with Buffers::kAverage, the mean of the replicas' by `shares`, which add up to 1. With other
// modes, and where a buffer is not of floats or has the same bits or another shape in the replicas, those of `first`. A
// buffer whose values stay the same is not written, so graphs that have saved it stay valid.
void mergeBuffers(std::vector<ClonedTensor>& buffers, Buffers mode, size_t first, const std::vector<double>& shares);

}  // namespace treadle::ddp

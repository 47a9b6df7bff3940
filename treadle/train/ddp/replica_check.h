#pragma once
// Finds out whether the replicas of a module are alike on all ranks of a group, or makes their values equal. Replicas
// that differ would train something else without any error: gradients of other parameters would be averaged if they
// have as many elements. Functions without state; used as the group is, between passes.

#include <torch/nn/module.h>

#include <string>
#include <vector>

#include "treadle/core/group/group.h"

namespace treadle {

// The construction of a DistributedDataParallel does this with the values of parameters and buffers. It always compares
// what replicas are made of (ddp::checkStructure).
enum class StartCheck {
  kBroadcast,     // copies those of rank 0 to all ranks
  kVerifyValues,  // copies nothing; StateError names the first one whose bits differ, and the ranks
  kTrust,         // copies and compares nothing: for replicas that are equal, as after loading one file
};

}  // namespace treadle

namespace treadle::ddp {

const char* nameOf(StartCheck start);

// Compares names, dtypes, shapes, strides (of dimensions of other sizes than 1), layouts and devices of all parameters
// and buffers, which of them share a tensor, which parameters are trained, and `settings`, line by line. ArgumentError
// on all ranks: names the first line that differs, and the ranks. Every rank calls it; throws what the group's
// operations throw (first_difference.h says what is sent).
void checkStructure(const torch::nn::Module& module, const ProcessGroup& group,
                    const std::vector<std::string>& settings);

// Compares the bits of all parameters, and of all buffers if `buffers` is true, by hashes of 128 bits. StateError on
// all ranks: names the first tensor that differs, and the ranks. The structures are alike. ArgumentError, also on all
// ranks: a tensor is not a dense one on the CPU.
void checkValues(const torch::nn::Module& module, const ProcessGroup& group, bool buffers);

// Copies the parameters and buffers of rank 0 to all ranks. The structures are alike. After a failure they may hold
// anything.
void broadcastValues(const torch::nn::Module& module, const ProcessGroup& group);
// Those of rank `source`; a rank on which it fails keeps its own. Takes memory for a copy of them.
void receiveValues(const torch::nn::Module& module, const ProcessGroup& group, int source);

// Does one of both, or nothing.
void startValues(const torch::nn::Module& module, const ProcessGroup& group, StartCheck start);

}  // namespace treadle::ddp

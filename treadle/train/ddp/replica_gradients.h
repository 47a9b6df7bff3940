#pragma once
// The gradients of replicas in one process: each replica's pass leaves its own, and their sums go to the module's as
// those of one pass. Functions without state.

#include <ATen/core/Tensor.h>

#include <vector>

#include "treadle/train/ddp/module_clone.h"

namespace treadle::ddp {

// What the passes of the replicas have come to.
struct ReplicaSums {
  std::vector<at::Tensor> parameters, gradients;  // those of the module that have one
  double weight = 0;                              // of all replicas, with Divisor::kWeights
  std::vector<at::Tensor> losses;                 // by replica, detached; undefined: it had no batch
};

// Takes the gradients from the replicas, and adds them in the order of the replicas: the same bits in each run.
void addUp(std::vector<ClonedTensor>& parameters, double divisor, ReplicaSums& sums);

void dropGradients(std::vector<ClonedTensor>& parameters);

// Adds the gradients to the module's as a backward pass does, with its hooks.
void accumulate(const ReplicaSums& sums);

}  // namespace treadle::ddp

#pragma once
// Memory of the gradients, or buffers, that are sent as one.

#include <ATen/core/Tensor.h>

#include <vector>

#include "treadle/train/ddp/bucket_plan.h"

namespace treadle::ddp {

struct Bucket {
  std::vector<size_t> parameters;
  at::Tensor flat;                // [elements of all], one after the other
  std::vector<at::Tensor> views;  // of each within `flat`, in the parameter's shape
  size_t arrived = 0;             // how many of them the pass has come to
};

// As planned. The memory has been written, as a rank that gives a pass up sends what there is.
std::vector<Bucket> makeBuckets(const std::vector<at::Tensor>& parameters, const BucketPlan& plan);

}  // namespace treadle::ddp

#pragma once
// Memory of the gradients, or buffers, that are sent as one. A value; its tensors share memory with copies.

#include <ATen/core/Tensor.h>

#include <vector>

#include "treadle/train/ddp/bucket_plan.h"

namespace treadle::ddp {

struct Bucket {
  std::vector<size_t> parameters;  // their places among those that are averaged
  at::Tensor flat;                 // [elements of all], one after the other
  std::vector<at::Tensor> views;   // of each within `flat`, in the parameter's shape
};

// As planned. The memory has been written, as a rank that gives a pass up sends what there is.
std::vector<Bucket> makeBuckets(const std::vector<at::Tensor>& parameters, const BucketPlan& plan);

}  // namespace treadle::ddp

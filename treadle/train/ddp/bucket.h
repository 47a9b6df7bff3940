#pragma once
// Memory of the gradients, or buffers, that are sent as one. A value; its tensors share memory with copies. After a
// pass its views are the `.grad` of parameters, so no average is copied.

#include <ATen/core/Tensor.h>

#include <vector>

#include "treadle/train/ddp/bucket_plan.h"

namespace treadle::ddp {

struct Bucket {
  std::vector<size_t> parameters;  // their places among those that are averaged
  at::Tensor flat;                 // [elements of all], one after the other
  std::vector<at::Tensor> views;   // of each within `flat`, in the parameter's shape; to autograd, tensors of their own
};

// The memory has been written, as a rank that gives a pass up sends what there is.
Bucket makeBucket(const std::vector<at::Tensor>& parameters, const std::vector<size_t>& indexes);
// Whether others hold one of its tensors, or its memory: what they have would change in the next pass.
bool isShared(const Bucket& bucket);

// As planned.
std::vector<Bucket> makeBuckets(const std::vector<at::Tensor>& parameters, const BucketPlan& plan);

}  // namespace treadle::ddp

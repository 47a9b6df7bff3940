#include "treadle/train/ddp/bucket.h"

#include <ATen/ops/zeros.h>

namespace treadle::ddp {

std::vector<Bucket> makeBuckets(const std::vector<at::Tensor>& parameters, const BucketPlan& plan) {
  std::vector<Bucket> buckets;
  for (const std::vector<size_t>& indexes : plan.buckets()) {
    int64_t elements = 0;
    for (size_t index : indexes) elements += parameters[index].numel();
    Bucket bucket;
    bucket.flat = at::zeros({elements}, parameters[indexes.front()].options().requires_grad(false));
    int64_t offset = 0;
    for (size_t index : indexes) {
      bucket.views.push_back(bucket.flat.narrow(0, offset, parameters[index].numel()).view(parameters[index].sizes()));
      offset += parameters[index].numel();
    }
    bucket.parameters = indexes;
    buckets.push_back(std::move(bucket));
  }
  return buckets;
}

}  // namespace treadle::ddp

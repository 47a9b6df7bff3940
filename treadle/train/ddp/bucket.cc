#include "treadle/train/ddp/bucket.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

namespace treadle::ddp {

Bucket makeBucket(const std::vector<at::Tensor>& parameters, const std::vector<size_t>& indexes) {
  // Autograd refuses some operations in place on its views, as detach_() in zero_grad(false).
  const at::AutoDispatchBelowADInplaceOrView noViews;
  int64_t elements = 0;
  for (size_t index : indexes) elements += parameters[index].numel();
  Bucket bucket;
  bucket.parameters = indexes;
  bucket.flat = at::zeros({elements}, parameters[indexes.front()].options().requires_grad(false));
  int64_t offset = 0;
  for (size_t index : indexes) {
    bucket.views.push_back(bucket.flat.narrow(0, offset, parameters[index].numel()).view(parameters[index].sizes()));
    offset += parameters[index].numel();
  }
  return bucket;
}

bool isShared(const Bucket& bucket) {
  const auto isHeld = [](const at::Tensor& tensor) { return tensor.use_count() > 1; };
  return isHeld(bucket.flat) || bucket.flat.storage().use_count() > 1 + bucket.views.size() ||
         std::any_of(bucket.views.begin(), bucket.views.end(), isHeld);
}

std::vector<Bucket> makeBuckets(const std::vector<at::Tensor>& parameters, const BucketPlan& plan) {
  std::vector<Bucket> buckets;
  for (const std::vector<size_t>& indexes : plan.buckets()) buckets.push_back(makeBucket(parameters, indexes));
  return buckets;
}

}  // namespace treadle::ddp

#include "treadle/train/ddp/buckets.h"

namespace treadle::ddp {

std::vector<std::vector<size_t>> planBuckets(const std::vector<at::Tensor>& parameters, const BucketLimits& limits) {
  std::vector<std::vector<size_t>> buckets;
  size_t filled = 0;
  for (size_t left = parameters.size(); left > 0; --left) {
    // Backwards: the last layer has its gradients first.
    size_t index = left - 1;
    size_t bytes = parameters[index].nbytes();
    // While the first bucket is being filled there is at most one.
    size_t limit = buckets.size() <= 1 ? limits.firstBytes : limits.bytes;
    // A bucket is one flat tensor, which has one dtype.
    bool fits = !buckets.empty() && filled + bytes <= limit &&
                parameters[buckets.back().front()].scalar_type() == parameters[index].scalar_type();
    if (!fits) {
      buckets.emplace_back();
      filled = 0;
    }
    buckets.back().push_back(index);
    filled += bytes;
  }
  return buckets;
}

}  // namespace treadle::ddp

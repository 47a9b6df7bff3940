#include "treadle/train/ddp/bucket_plan.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

namespace treadle::ddp {

size_t BucketLimits::bytesOf(bool isFirst) const {
  const size_t others = bytes.value_or(kLargestBucket);
  return isFirst ? firstBytes.value_or(std::min(kFirstBucket, others)) : others;
}

std::vector<size_t> reverseOrder(size_t parameters) {
  std::vector<size_t> order(parameters);
  std::iota(order.rbegin(), order.rend(), size_t{0});
  return order;
}

BucketPlan::BucketPlan(const std::vector<at::Tensor>& parameters, const std::vector<size_t>& order,
                       const BucketLimits& limits)
    : placeOf_(parameters.size()) {
  // The bucket that is being filled with the parameters of one dtype and device.
  struct Open {
    size_t bucket = 0, bytes = 0, limit = 0;
  };
  std::map<std::pair<at::ScalarType, std::string>, Open> open;
  for (const size_t index : order) {
    const size_t bytes = parameters[index].nbytes();
    auto [found, isFirst] = open.try_emplace({parameters[index].scalar_type(), parameters[index].device().str()});
    Open& filling = found->second;
    if (isFirst || filling.bytes + bytes > filling.limit) {
      filling = {buckets_.size(), 0, limits.bytesOf(isFirst)};
      buckets_.emplace_back();
    }
    placeOf_[index] = Place{filling.bucket, buckets_[filling.bucket].size()};
    buckets_[filling.bucket].push_back(index);
    filling.bytes += bytes;
  }
}

}  // namespace treadle::ddp

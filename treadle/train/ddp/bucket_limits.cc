#include "treadle/train/ddp/bucket_limits.h"

#include <algorithm>

#include "treadle/core/group/expected_time.h"

namespace treadle::ddp {
namespace {

constexpr double kMostSeconds = 0.02;
constexpr size_t kSmallestBucket = size_t{256} << 10;

}  // namespace

BucketLimits limitsFor(const ProcessGroup& group, BucketLimits limits) {
  if (limits.bytes) return limits;
  size_t bytes = kLargestBucket;
  while (bytes > kSmallestBucket && group::expectedAllReduceTime(group, bytes) > kMostSeconds)
    bytes = std::max(kSmallestBucket, bytes / 2);
  limits.bytes = bytes;
  return limits;
}

}  // namespace treadle::ddp

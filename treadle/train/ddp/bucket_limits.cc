#include "treadle/train/ddp/bucket_limits.h"

#include <algorithm>

#include "treadle/core/group/expected_time.h"

namespace treadle::ddp {
namespace {

constexpr double kMostSeconds = 0.02;
// Half of a bucket that takes more than this part of its time is hardly faster: most of that is latency.
constexpr double kLeastGain = 0.7;
constexpr size_t kSmallestBucket = size_t{256} << 10;

}  // namespace

BucketLimits limitsFor(const ProcessGroup& group, BucketLimits limits) {
  if (limits.bytes) return limits;
  size_t bytes = kLargestBucket;
  double time = group::expectedAllReduceTime(group, bytes);
  while (bytes > kSmallestBucket && time > kMostSeconds) {
    const size_t half = std::max(kSmallestBucket, bytes / 2);
    const double timeOfHalf = group::expectedAllReduceTime(group, half);
    if (timeOfHalf > kLeastGain * time) break;
    bytes = half;
    time = timeOfHalf;
  }
  limits.bytes = bytes;
  return limits;
}

}  // namespace treadle::ddp

#include "treadle/train/ddp/bucket_limits.h"

#include <algorithm>
#include <map>

#include "treadle/core/base/error.h"
#include "treadle/core/group/expected_time.h"
#include "treadle/tensor/collective/flat.h"

namespace treadle::ddp {
namespace {

constexpr double kMostSeconds = 0.02;
// Half of a bucket that takes more than this part of its time is hardly faster: most of that is latency.
constexpr double kLeastGain = 0.7;
constexpr size_t kSmallestBucket = size_t{256} << 10;
constexpr size_t kBucketOfOthers = size_t{64} << 10;

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

BucketLimits limitsFor(const CommHook& hook, const ProcessGroup& group, BucketLimits limits) {
  if (hook.isByGroup()) return limitsFor(group, limits);
  if (!limits.bytes) limits.bytes = kBucketOfOthers;
  return limits;
}

Result<group::Algorithm> algorithmOfAverages(const ProcessGroup& group, const std::vector<at::Tensor>& tensors,
                                             const BucketLimits& limits) try {
  struct Amount {
    uint64_t all = 0, largest = 0;
    uint64_t bucket() const { return std::min(all, largest); }
  };
  std::map<at::ScalarType, Amount> amounts;
  const uint64_t limit = std::max(limits.bytesOf(true), limits.bytesOf(false));
  for (const at::Tensor& tensor : tensors) {
    Amount& amount = amounts[tensor.scalar_type()];
    amount.all += tensor.nbytes();
    amount.largest = std::max({amount.largest, limit, tensor.nbytes()});
  }
  group::Algorithm algorithm = group::Algorithm::kAutomatic;
  uint64_t most = 0;
  for (const auto& [type, amount] : amounts) {
    const uint64_t bytes = amount.bucket();
    Result<group::Algorithm> found = group::algorithmOfAverage(group, bytes, collective::dataTypeOf(type));
    if (!found.ok()) return found;
    if (bytes > most) algorithm = *found;
    most = std::max(most, bytes);
  }
  return algorithm;
} catch (...) {
  return statusOfCurrentException("DistributedDataParallel");
}

std::string textOf(const BucketLimits& limits) {
  return "buckets of " + std::to_string(limits.bytesOf(true)) + ", then " + std::to_string(limits.bytesOf(false)) +
         " bytes";
}

std::string textOf(const Result<group::Algorithm>& algorithm) {
  return "GroupOptions::algorithm, which averages by " +
         (algorithm.ok() ? std::string(nameOf(*algorithm)) : "none: " + algorithm.status().message());
}

}  // namespace treadle::ddp

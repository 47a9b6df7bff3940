#pragma once
// How large buckets are for a network: what the group sums in 20 ms. In a pass that takes long enough to overlap, what
// is left to wait for at its end is about one bucket, so a slow network needs small ones; a fast one has them done
// sooner than their overhead is paid. The same on all ranks, as the costs of a job are.

#include "treadle/core/group/group.h"
#include "treadle/train/ddp/bucket_plan.h"

namespace treadle::ddp {

// `limits`; where it has no bytes, kLargestBucket, halved until the all-reduce is expected to take no longer
// (expected_time.h), as long as half of it takes much less, and at least 256 KiB.
BucketLimits limitsFor(const ProcessGroup& group, BucketLimits limits);

}  // namespace treadle::ddp

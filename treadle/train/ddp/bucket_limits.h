#pragma once
// How large buckets are for a network: what the group sums in 20 ms. In a pass that takes long enough to overlap, what
// is left to wait for at its end is about one bucket, so a slow network needs small ones; a fast one has them done
// sooner than their overhead is paid. The same on all ranks, as the costs of a job are.

#include <string>
#include <vector>

#include "treadle/core/group/group.h"
#include "treadle/train/ddp/bucket_plan.h"
#include "treadle/train/ddp/comm_hook.h"

namespace treadle::ddp {

// `limits`; where it has no bytes, kLargestBucket, halved until the all-reduce is expected to take no longer
// (expected_time.h), as long as half of it takes much less, and at least 256 KiB.
BucketLimits limitsFor(const ProcessGroup& group, BucketLimits limits);
// The same for what the hook averages. Where that is not by the group, 64 KiB in place of what suits the group: a
// summation service sums each parameter by itself, so larger buckets would only begin later.
BucketLimits limitsFor(const CommHook& hook, const ProcessGroup& group, BucketLimits limits);

// The algorithm by which the group averages the largest bucket that these tensors can fill, in whatever order; those of
// each dtype are asked for, and the one of most bytes counts. InvalidArgument: a dtype has no average, or an algorithm
// that the group forces cannot do one of them (`GroupOptions::algorithm`).
Result<group::Algorithm> algorithmOfAverages(const ProcessGroup& group, const std::vector<at::Tensor>& tensors,
                                             const BucketLimits& limits);

// As ranks compare them: "buckets of 1048576, then 26214400 bytes"; "GroupOptions::algorithm, which averages by ring".
std::string textOf(const BucketLimits& limits);
std::string textOf(const Result<group::Algorithm>& algorithm);

}  // namespace treadle::ddp

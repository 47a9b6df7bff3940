#pragma once
// Hooks that average as without one, but for the bucket of a parameter: it is held back, or it fails.

#include <algorithm>
#include <optional>
#include <utility>

#include "tests/train/ddp/net.h"

namespace treadle::test::ddp_test {

inline bool has(const ddp::Bucket& bucket, size_t parameter) {
  return std::ranges::find(bucket.parameters, parameter) != bucket.parameters.end();
}

// The bucket of the first parameter is on its way until `release`.
class Held final : public CommHook {
 public:
  std::string description() const override { return "Held"; }
  Reduction reduce(Exchange& exchange, const ddp::Bucket& bucket) override {
    at::Tensor average = bucket.flat;
    exchange.add(allReduce(exchange.group(), average, ReduceOp::kAverage));
    if (has(bucket, 0)) exchange.add(arrives_.future());
    co_return;
  }
  void release() {
    if (!std::exchange(isReleased_, true)) arrives_.set();
  }

 private:
  Promise<void> arrives_;
  bool isReleased_ = false;
};

// An operation of the bucket with a parameter fails on this rank alone.
class FailsForAParameter final : public CommHook {
 public:
  std::string description() const override { return "FailsForAParameter"; }
  Reduction reduce(Exchange& exchange, const ddp::Bucket& bucket) override {
    at::Tensor average = bucket.flat;
    exchange.add(allReduce(exchange.group(), average, ReduceOp::kAverage));
    if (parameter && has(bucket, *parameter)) {
      Promise<void> failed;
      exchange.add(failed.future());
      failed.fail(deadlineExceeded("this all-reduce has failed"));
    }
    co_return;
  }
  std::optional<size_t> parameter;
};

}  // namespace treadle::test::ddp_test

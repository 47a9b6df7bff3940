#pragma once
// Several workers with tensors in one process, joined over loopback like processes of a job. For tests that
// link treadle::treadle or tensor/worker.

#include "tests/support/worker_job.h"
#include "treadle/tensor/autograd/interceptor.h"
#include "treadle/tensor/worker/join.h"

namespace treadle::test {

class TensorJob : public WorkerJob {
 public:
  // Worker i is called names[i] and has rank i; all have the same functions.
  explicit TensorJob(std::vector<std::string> names, const Functions& functions = {}, AutogradOptions defaults = {},
                     const Adjust& adjust = {})
      : WorkerJob(std::move(names), functions, adjust,
                  [defaults](JoinOptions options) { return treadle::join(std::move(options), defaults); }) {}

  // Autograd contexts that are open anywhere.
  size_t openContexts() {
    size_t open = 0;
    for (auto& worker : workers())
      if (worker) open += autograd::interceptorOf(*worker).contexts().open();
    return open;
  }

  // Messages of a context whose graph is kept, on all workers.
  size_t sendsKept(int64_t contextId) {
    size_t sends = 0;
    for (auto& worker : workers()) {
      auto context = autograd::interceptorOf(*worker).contexts().find(contextId);
      if (context.ok()) sends += (*context)->graph->sends().size();
    }
    return sends;
  }
};

// Equal in dtype and shape, and in values up to `tolerance`.
inline ::testing::AssertionResult close(const at::Tensor& a, const at::Tensor& b, double tolerance = 1e-10) {
  if (!a.defined() || !b.defined()) return ::testing::AssertionFailure() << "a tensor is undefined";
  if (a.scalar_type() != b.scalar_type() || a.sizes() != b.sizes())
    return ::testing::AssertionFailure() << a.toString() << a.sizes() << " and " << b.toString() << b.sizes();
  if (at::allclose(a, b, tolerance, tolerance)) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "they differ by up to " << (a - b).abs().max().item<double>();
}

// Equal in dtype and shape, and in values up to 1e-10 of the largest one that is expected; what cancels leaves 1e-14.
inline ::testing::AssertionResult closeToLargest(const at::Tensor& found, const at::Tensor& expected) {
  constexpr double kTolerance = 1e-10;
  if (!found.defined() || !expected.defined()) return ::testing::AssertionFailure() << "a tensor is undefined";
  if (found.scalar_type() != expected.scalar_type() || found.sizes() != expected.sizes())
    return ::testing::AssertionFailure() << found.toString() << found.sizes() << " and " << expected.toString()
                                         << expected.sizes();
  if (found.numel() == 0) return ::testing::AssertionSuccess();
  const auto difference = (found - expected).abs().max().item<double>();
  const auto largest = expected.abs().max().item<double>();
  if (difference <= std::max(kTolerance * largest, 1e-14)) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "they differ by up to " << difference << ", the largest is " << largest;
}

}  // namespace treadle::test

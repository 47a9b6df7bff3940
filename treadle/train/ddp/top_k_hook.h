#pragma once
// Sends the largest elements of each gradient, and holds the others back (A. F. Aji, K. Heafield 2017, "Sparse
// communication for distributed gradient descent"; S. U. Stich et al. 2018, "Sparsified SGD with memory").

#include "treadle/train/ddp/error_feedback_hook.h"

namespace treadle {

// Must be the same on all ranks.
struct TopKOptions {
  double ratio = 0.01;  // the part of the elements of each parameter that each rank sends; above 0, at most 1
};

// Of a parameter with n elements, a rank sends the k = max(1, ratio n) of largest magnitude, of equal ones those with
// the lowest index, and the result is the average of what all ranks send: an element that a rank does not send counts
// as 0 there. A parameter is averaged as it is where that sends no more, if the ranks' k add up to more than n / 2, and
// so is one whose elements are no real floating-point numbers.
//
// An element takes 4 bytes (float64: 8) and its index 8, or a bit for each element of the bucket's compressed
// parameters if that is less. A rank sends its k, and its share of the union of all ranks' elements to each other rank
// (sparseAllReduce). In each bucket there are at most two operations.
//
// In training, the losses follow those of one process on the whole batch a few steps late. For 50 steps of SGD without
// momentum of a small network, a ratio of 0.1, and ranks whose data differ: each loss differs by at most 15% of the
// first loss, and the mean of the last ten by at most 5% of what one process's loss has decreased
// (tests/train/ddp/losses_test.cc).
//
// The state has "top_k.error.<name>" for each parameter of which something is held back.
class TopKHook final : public ErrorFeedbackHook {
 public:
  // ArgumentError: options out of range.
  explicit TopKHook(TopKOptions options = {});

  std::string description() const override;
  Reduction reduce(Exchange& exchange, const ddp::Bucket& bucket) override;

 private:
  void reset(const ProcessGroup& group, const std::vector<HookParameter>& parameters) override;
  bool isCompressed(const at::Tensor& gradient) const;
  int64_t countOf(const at::Tensor& gradient) const;
  at::Tensor selected(const ddp::Bucket& bucket, const std::vector<size_t>& positions);

  const TopKOptions options_;
  int64_t ranks_ = 1;
};

}  // namespace treadle

#pragma once
// Sends gradients as products of two thin matrices, by one step of power iteration in each pass (T. Vogels, S. P.
// Karimireddy, M. Jaggi 2019, "PowerSGD: Practical low-rank gradient compression for distributed optimization",
// algorithms 1 and 2). torch calls it powerSGD_hook.

#include "treadle/train/ddp/error_feedback_hook.h"

namespace treadle {

// Must be the same on all ranks. In brackets: torch's name.
struct PowerSgdOptions {
  int64_t rank = 1;               // columns of the thin matrices [matrix_approximation_rank]; at least 1
  int64_t startAfter = 1000;      // averaged passes whose gradients are not compressed [start_powerSGD_iter]
  double minCompressionRate = 2;  // a matrix is compressed if that saves more than this factor [min_compression_rate]
  uint64_t seed = 0;              // of the first Q [random_seed]
};

// The gradient of a parameter with two dimensions or more is a matrix M_r, its first dimension by all others: n x m. It
// is compressed if (n + m) k minCompressionRate < n m, where k = min(rank, n, m). With what rank r holds back, e_r:
//
//   D_r = M_r + e_r   P = orth(mean_r D_r Q)   Q_r = D_r^T P   Q = mean_r Q_r   average = P Q^T   e_r = D_r - P Q_r^T
//
// Q stays for the next pass (warm start), orthonormal, where directions that have become 0 are replaced by random ones.
// orth is Gram-Schmidt: torch has it or a QR decomposition, of the same columns up to their signs. Where k = n or m,
// the average is that of the D_r up to rounding. P, Q and e_r are float64 for float64, otherwise float32. All other
// parameters are averaged as they are.
//
// A rank sends (n + m) k numbers in place of n m, in three operations for each bucket: what is not compressed and all P
// as soon as the bucket is full, all Q after the backward pass. An infinity or NaN in a matrix, on any rank, makes all
// of its average infinite.
//
// In training, the losses follow those of one process on the whole batch a few steps late. For 50 steps of SGD without
// momentum of a small network, all compressed with a rank of 1 or 2, and ranks whose data differ: each loss differs by
// at most 15% of the first loss, and the mean of the last ten by at most 5% of what one process's loss has decreased
// (tests/train/ddp/losses_test.cc).
//
// Averaged passes are counted as they begin, also those that fail. The state has "power_sgd.passes", and
// "power_sgd.error.<name>" and "power_sgd.q.<name>" ([m, k]) for compressed parameters.
class PowerSgdHook final : public ErrorFeedbackHook {
 public:
  // ArgumentError: options out of range.
  explicit PowerSgdHook(PowerSgdOptions options = {});

  // With the number of passes and a hash of all Q: ranks that have loaded other states are not alike.
  std::string description() const override;
  Reduction reduce(Exchange& exchange, const ddp::Bucket& bucket) override;
  // The number of passes and all Q become those of rank 0.
  void agree(const ProcessGroup& group) override;

 private:
  class BucketPass;
  // k is 0 for a parameter that is not compressed.
  struct Shape {
    int64_t n = 0, m = 0, k = 0;
  };
  struct Factor {
    Shape shape;
    at::Tensor q;     // [k, m], orthonormal rows: Q^T; undefined if k is 0
    at::Tensor next;  // what the pass has made of it
  };

  void reset(const ProcessGroup& group, const std::vector<HookParameter>& parameters) override;
  void saveRest(OptimizerState& state, const std::string& prefix) const override;
  void loadRest(OptimizerState& state, const std::string& prefix) override;
  void beginRest() override;
  void commitRest(const std::vector<bool>& isUsed) override;
  Shape shapeOf(const at::Tensor& parameter) const;
  uint64_t seedOf(size_t parameter) const;

  const PowerSgdOptions options_;
  std::vector<std::string> names_;
  std::vector<Factor> factors_;  // by parameter
  int64_t passes_ = 0;
};

}  // namespace treadle

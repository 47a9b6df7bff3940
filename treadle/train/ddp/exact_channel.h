#pragma once
// The operation after the buckets of each averaged pass: a small all-reduce, after which every rank has the same
// account of the pass, byte for byte. It holds which parameters have a gradient on some rank, whether that is sparse,
// which buckets must be reduced again, and what each rank reports of itself. So all ranks agree on these, and on the
// operations that follow, and buckets carry nothing but gradients.
//
// Owned by a reducer; used by one thread at a time.

#include <ATen/core/Tensor.h>

#include "treadle/core/base/clock.h"
#include "treadle/core/group/group.h"
#include "treadle/train/ddp/uneven_inputs.h"

namespace treadle::ddp {

// The report of a rank at the end of a pass.
struct RankReport {
  bool failed = false;  // the pass has failed there by then
  bool active = false;  // it has had a batch since the last averaged pass
  double weight = 0;    // of these batches (Divisor::kWeights)
  JoinReport join = {};
  Duration elapsed = {};  // since its last averages; sent in microseconds, at most 71 minutes
  uint64_t averages = 0;  // averaged passes that have gone well
};

class ExactChannel {
 public:
  // Every rank has the same numbers of parameters and buckets, and `carriesOrder`: there is room for markOrder.
  ExactChannel(ProcessGroup group, size_t parameters, size_t buckets, bool carriesOrder);

  // For the next pass, in memory of its own: the operation of the last one may still be under way.
  void renew();
  // This rank has a dense gradient for it.
  void markUsed(size_t parameter);
  // This rank has a sparse gradient for it, of so many sparse dimensions (0 to 64), and no dense one.
  void markSparse(size_t parameter, int64_t dims);
  // A gradient in it has changed since this rank sent it.
  void markAgain(size_t bucket);
  // On rank 0 alone: the order of all parameters in which gradients have come there.
  void markOrder(const std::vector<size_t>& order);
  // Starts the all-reduce, which is the group's next operation.
  Future<void> send(const RankReport& own);

  // Valid after the all-reduce; equal on all ranks.

  // Whether a rank has a gradient for it.
  bool used(size_t parameter) const;
  // Whether the average of a parameter that is used is dense: a rank's gradient is, or sparse ones have different
  // numbers of sparse dimensions.
  bool isDense(size_t parameter) const;
  // Of all ranks' gradients, if the average is sparse.
  int64_t sparseDims(size_t parameter) const;
  bool anyUsed() const;
  // Whether a rank's part of it has changed.
  bool again(size_t bucket) const;
  bool anyAgain() const;
  std::vector<RankReport> reports() const;
  // The order that rank 0 has marked; empty if it has marked none. FailedPrecondition: not each parameter once, which
  // no rank of ours sends.
  Result<std::vector<size_t>> order() const;
  // Cancelled if the pass failed on a rank: names the worker of the first such rank, and says how many more there are.
  Status outcome() const;
  // FailedPrecondition if not all ranks have had as many averages: names one that has had the fewest, and one with the
  // most.
  Status checkSameAverages() const;

 private:
  uint8_t& at(size_t place) const;
  bool isAnyMarked(size_t begin, size_t end) const;

  ProcessGroup group_;
  size_t parameters_;
  size_t buckets_, ranks_, order_;  // where their bytes begin
  // [2 parameters + buckets + 21 ranks (+ 4 parameters)] uint8: 255 for each parameter with a dense gradient, or 1 +
  // its sparse dimensions; 254 - its sparse dimensions for each with a sparse one, whose maximum is that of the fewest;
  // 1 for each bucket to be reduced again; the report of each rank: a byte of flags, 8 of its weight, 4 of its time in
  // microseconds, as uint32, and 8 of its number of averages; and 1 + the index of each parameter in rank 0's order, as
  // uint32. The flags are 1: failed, 2: active, 4: done; and 8 times the guard of join(): 0 for none, or 1 + its
  // UnevenInputs. Others leave a rank's bytes 0, so the maximum is a copy. A tensor, because a collective keeps that
  // alive.
  at::Tensor bytes_;
};

}  // namespace treadle::ddp

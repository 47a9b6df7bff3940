#pragma once
// The last operation of each averaged pass, but for buckets that it calls for: a small all-reduce, after which every
// rank has the same account of the pass, byte for byte. It holds which parameters have a gradient on some rank, which
// buckets must be reduced again, and which ranks have failed by then. So all ranks agree on these, and buckets carry
// nothing but gradients.
//
// Owned by a reducer; used by one thread at a time.

#include <ATen/core/Tensor.h>

#include "treadle/core/group/group.h"

namespace treadle::ddp {

class ExactChannel {
 public:
  // Every rank has the same numbers of parameters and buckets.
  ExactChannel(ProcessGroup group, size_t parameters, size_t buckets);

  // For the next pass, in memory of its own: the operation of the last one may still be under way.
  void renew();
  // This rank has a gradient for it.
  void markUsed(size_t parameter);
  // A gradient in it has changed since this rank sent it.
  void markAgain(size_t bucket);
  // Starts the all-reduce, which is the group's next operation. `failed`: the pass failed on this rank.
  Future<void> send(bool failed);

  // Valid after the all-reduce; equal on all ranks.

  // Whether a rank has a gradient for it.
  bool used(size_t parameter) const;
  // Whether a rank's part of it has changed.
  bool again(size_t bucket) const;
  // Cancelled if the pass failed on a rank: names the worker of the first such rank, and says how many more there are.
  Status outcome() const;

 private:
  uint8_t& at(size_t place) const;

  const ProcessGroup group_;
  const size_t buckets_, ranks_;  // where their bytes begin
  // [parameters + buckets + ranks] uint8: 1 for each parameter that is used, each bucket to be reduced again, and each
  // rank that failed. Others leave a rank's place 0, so the maximum is the byte of that rank. A tensor, because a
  // collective keeps that alive.
  at::Tensor bytes_;
};

}  // namespace treadle::ddp

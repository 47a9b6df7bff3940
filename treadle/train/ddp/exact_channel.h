#pragma once
// The last operation of each averaged pass: a small all-reduce, after which every rank has the same account of the
// pass, byte for byte. It holds which parameters have a gradient on some rank, and which ranks failed. So a pass has
// one outcome, and buckets carry nothing but gradients.
//
// Owned by a reducer; used by one thread at a time.

#include "treadle/core/group/group.h"

#include <ATen/core/Tensor.h>

namespace treadle::ddp {

class ExactChannel {
 public:
  // Every rank has the same number of parameters.
  ExactChannel(ProcessGroup group, size_t parameters);

  // For the next pass. The operation of the last one must have ended.
  void clear();
  // This rank has a gradient for it.
  void markUsed(size_t parameter);
  // Starts the all-reduce, which is the group's next operation. `failed`: the pass failed on this rank.
  Future<void> send(bool failed);

  // These are for after the all-reduce, and equal on all ranks.

  // Whether a rank has a gradient for it.
  bool used(size_t parameter) const;
  // Cancelled, with the first of the ranks on which the pass failed and the name of its worker.
  Status outcome() const;

 private:
  uint8_t& at(size_t place) const;

  const ProcessGroup group_;
  const size_t parameters_;
  // [parameters + ranks] uint8: 1 for each parameter that is used, then 1 for each rank that failed. Others leave a
  // rank's place 0, so the maximum is the byte of that rank. A tensor, because a collective keeps that alive.
  at::Tensor bytes_;
};

}  // namespace treadle::ddp

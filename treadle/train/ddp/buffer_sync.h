#pragma once
// Keeps the buffers of a module, such as running means, equal on all ranks during training. They are exchanged at the
// end of each averaged pass, with its gradients, and never in forward: a rank may evaluate alone.
//
// Owned by a reducer, and used under its lock with grad mode off. Memory: one copy of the buffers, and 48 bytes for
// each; none for kOnce.

#include <torch/nn/module.h>

#include <vector>

#include "treadle/core/group/group.h"
#include "treadle/train/ddp/bucket.h"
#include "treadle/train/ddp/divisor.h"
#include "treadle/train/ddp/hash128.h"
#include "treadle/train/ddp/operations.h"

namespace treadle {

// The values of buffers after an averaged pass. Passes under noSync exchange none, and neither do passes that fail.
enum class Buffers {
  kOnce,       // each rank's own, once they were made equal when DistributedDataParallel was constructed
  kFromRank0,  // those of rank 0, or of the lowest rank that has had a batch
  kAverage,    // the mean over all ranks, weighted as DdpOptions::divisor says; a buffer that has the same bits on all
               // ranks keeps them, and integers, booleans and complex numbers are those of kFromRank0
};

}  // namespace treadle

namespace treadle::ddp {

const char* nameOf(Buffers mode);

class BufferSync {
 public:
  // Takes the buffers that `module` has now. ArgumentError: one is not a dense tensor on the CPU, unless for kOnce.
  BufferSync(const torch::nn::Module& module, Buffers mode);

  // FailedPrecondition, naming the first buffer that has another dtype, shape or place of its memory than when this was
  // constructed.
  Status checkUnchanged() const;

  // Begins the exchange of what the buffers hold now: an operation for each dtype, and for kAverage one before them
  // with 32 bytes for each buffer.
  void begin(const ProcessGroup& group, const Shares& shares, Operations& operations);
  // These have ended well: writes what came to the buffers. A buffer whose bits stay the same is not written, so graphs
  // that have saved it stay valid.
  void put();
  // Leaves its memory to operations that may still be under way, and takes other memory.
  void renewMemory();

 private:
  void fillPacks();
  void beginComparison(const ProcessGroup& group, Operations& operations);
  bool isAlike(size_t buffer) const;

  const Buffers mode_;
  std::vector<at::Tensor> buffers_;
  std::vector<std::string> names_;  // of buffers_
  std::vector<Bucket> packs_;       // of one dtype each, with the shapes that the buffers had
  std::vector<Hash128> hashes_;     // of what this rank has packed, by buffer
  // [2, 16 buffers] uint8: the largest of each byte of the ranks' hashes, and 255 minus the smallest. A tensor, because
  // a collective keeps that alive.
  at::Tensor bounds_;
};

}  // namespace treadle::ddp

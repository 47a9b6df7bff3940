#pragma once
// Makes replicas equal that have trained each for itself: all trained parameters become their mean over the ranks, also
// those without a gradient, and with them what optimizers keep, if asked, and buffers as Buffers says.
//
// Owned by a LocalSgd; used by one thread at a time, between passes. Memory: a copy of what is averaged, while it is.

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "treadle/train/ddp/bucket_limits.h"
#include "treadle/train/ddp/buffer_sync.h"
#include "treadle/train/ddp/optimizer_tensors.h"
#include "treadle/train/ddp/parameter_list.h"

namespace treadle::ddp {

class ReplicaMean {
 public:
  // Takes the parameters that require a gradient now. `limits` are those of the sums, as of gradients. ArgumentError:
  // BufferSync's.
  ReplicaMean(const torch::nn::Module& module, Buffers buffers, BucketLimits limits);

  const std::vector<at::Tensor>& parameters() const { return list_.trained(); }
  // From now on what it keeps is averaged too. The same kinds, in the same order, on all ranks.
  void add(std::unique_ptr<OptimizerTensors> optimizer) { optimizers_.push_back(std::move(optimizer)); }
  // A line for each parameter of an optimizer, which must be the same on all ranks.
  static std::vector<std::string> linesOf(const OptimizerTensors& optimizer);

  // The algorithm of the largest sum (bucket_limits.h) where optimizers keep all that they can; `added` would be one
  // more.
  Result<group::Algorithm> algorithm(const ProcessGroup& group, const OptimizerTensors* added = nullptr) const;

  // FailedPrecondition: a parameter or a buffer has become another one since this was made.
  Status checkUnchanged() const;

  // Every rank calls it, with the same shares, and waits for the others. Ranks with a share count alike. A tensor that
  // an optimizer keeps on some ranks counts as zeros on the others, and numbers of steps become the largest. Throws
  // what the group's operations throw; then nothing has changed here.
  void make(const ProcessGroup& group, const Shares& shares);

 private:
  // A tensor that is averaged.
  struct Value {
    at::Tensor parameter;  // itself, or the one to which it belongs; of the same shape
    at::Tensor own;        // of this rank; undefined: none
  };
  // What an optimizer keeps of a parameter.
  struct OfParameter {
    OptimizerTensors* optimizer;
    size_t parameter;
    OptimizerTensors::Kept kept;
    std::vector<std::optional<size_t>> values;  // the place of each tensor among the values; nothing: no rank has it
    bool isKept = false;                        // on some rank
  };

  std::vector<OfParameter> survey(const ProcessGroup& group, std::vector<Value>& values) const;
  std::vector<Bucket> emptyPacks(const std::vector<Value>& values) const;
  static void giveToOptimizers(std::vector<OfParameter>& ofParameters, const std::vector<Value>& values);

  const ParameterList list_;
  BufferSync buffers_;
  const BucketLimits limits_;
  std::vector<std::unique_ptr<OptimizerTensors>> optimizers_;
};

}  // namespace treadle::ddp

#pragma once
// How the gradients of a bucket become their average over the ranks: what is sent, and what becomes of it. The default
// averages the bucket as it is; others send fewer bytes. A program may write its own:
//
//   class ToHalf : public treadle::CommHook {
//    public:
//     std::string description() const override { return "ToHalf"; }
//     treadle::Reduction reduce(treadle::Exchange& exchange, const treadle::ddp::Bucket& bucket) override {
//       at::Tensor half = bucket.flat.to(at::kHalf);
//       co_await exchange.round(treadle::allReduce(exchange.group(), half, treadle::ReduceOp::kAverage));
//       bucket.flat.copy_(half);
//     }
//   };
//
// A hook serves one DistributedDataParallel at a time, which shares ownership of it. Its functions are called by one
// thread at a time, with grad mode off. They must not wait, as `reduce` runs within the backward pass, nor call the
// DistributedDataParallel, which has its lock.
//
// A rank on which an operation of the hook fails, or its code throws, cannot know what the others begin next. The pass
// fails there, and the group fails on all ranks, with the reason (distributed_data_parallel.h).

#include <memory>
#include <string>
#include <vector>

#include "treadle/tensor/collective/collectives.h"
#include "treadle/train/ddp/bucket.h"
#include "treadle/train/ddp/reduction.h"

namespace treadle {

// A parameter that is averaged, by its place among these.
struct HookParameter {
  std::string name;  // the first one
  at::Tensor tensor;
};

class CommHook {
 public:
  virtual ~CommHook() = default;

  // Its kind, all of its options and whatever else must be the same on all ranks, as one line. It is compared when a
  // DistributedDataParallel is constructed, after `bind`.
  virtual std::string description() const = 0;

  // A coroutine. When it begins, `bucket.flat` holds this rank's gradients, of one dtype; when it ends, their average
  // over all ranks, with the same bits on all. The parameters of a bucket may be other ones in later passes. The first
  // round begins when the last gradient of the bucket has come, while the backward pass runs on; later ones when it is
  // over, bucket by bucket. In a pass that fails here it begins all the same, on any numbers, and does not end. It
  // begins anew where a gradient changes after the first round. Operations have the bucket's tensors, or others that it
  // makes each time: those of a failed pass may still be under way when the next one begins. The bucket's tensors are
  // written in place; they keep their shapes, dtype and memory. Some buckets may have no elements.
  virtual Reduction reduce(Exchange& exchange, const ddp::Bucket& bucket) = 0;

  // Whether all its operations are those of the group. Others have numbers of their own: where only some ranks begin a
  // pass, the numbers differ from then on; and their buckets are small (64 KiB) where DdpOptions::buckets has no bytes,
  // as the costs of the group say nothing about them.
  virtual bool isByGroup() const { return true; }

  // For hooks with a state, which is that of parameters.

  // The parameters and the group of a DistributedDataParallel that is being constructed; again for a later one, and by
  // rebind(), which binds it to the old group again where it fails: what the hook holds back stays. If it throws on a
  // rank, all ranks throw ArgumentError with the text.
  virtual void bind(const ProcessGroup& group, const std::vector<HookParameter>& parameters);
  // DistributedDataParallel::rebind, after `bind`, on all ranks of the group. A pass may have failed on some ranks
  // alone: what must be the same on all ranks becomes that of the group's rank 0. It may wait for operations of the
  // group, unlike the other functions. If it throws, the hook keeps what it has.
  virtual void agree(const ProcessGroup& group);
  // An averaged pass begins, on all ranks. It may fail. What this throws ends the group, as what `reduce` throws.
  virtual void beginPass() {}
  // The same, on a rank that has no batch left (DistributedDataParallel::join): its gradients are zeros. A hook with an
  // error memory adds nothing of it and holds nothing back. By default it is beginPass().
  virtual void beginShadowPass() { beginPass(); }
  // It has gone well on this rank, and the averages are put. `isUsed`: which parameters had a gradient on some rank,
  // and their average from a bucket. Others keep what they have, or have a sparse average or one outside of
  // buckets, which no hook sees: their places in buckets are not used. What the pass has changed in the state holds
  // from here on, and not before. What this throws fails the pass on this rank alone, with averages that are put; the
  // next one fails on all (kApart).
  virtual void passAveraged(const std::vector<bool>& isUsed);

 protected:
  // A DistributedDataParallel has it.
  bool isClaimed() const { return isClaimed_; }

 private:
  friend class HookClaim;
  bool isClaimed_ = false;
};

// The default: the average of the bucket, in its own dtype.
class AverageHook final : public CommHook {
 public:
  std::string description() const override { return "AverageHook"; }
  Reduction reduce(Exchange& exchange, const ddp::Bucket& bucket) override;
};

// While it or a copy lives, no other DistributedDataParallel takes the hook, which may be null. StateError: one has it.
class HookClaim {
 public:
  explicit HookClaim(std::shared_ptr<CommHook> hook);

 private:
  std::shared_ptr<CommHook> claimed_;  // gives it back when the last copy goes
};

}  // namespace treadle

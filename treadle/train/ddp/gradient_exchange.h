#pragma once
// The gradients of one pass on their way: each is copied into its bucket when it comes, full buckets are averaged by a
// hook in one order on all ranks, then the exact channel goes, then sparse gradients (sparse_exchange.h), and the
// averages take the place of the gradients, where they lie. Begins operations, which it appends to a list, and waits
// for none.
//
// Owned by a reducer, and used under its lock with grad mode off. Memory: one copy of the gradients, in the buckets;
// between passes none, where these are the gradients.

#include <memory>
#include <optional>
#include <vector>

#include "treadle/core/group/group.h"
#include "treadle/train/ddp/arrival_order.h"
#include "treadle/train/ddp/comm_hook.h"
#include "treadle/train/ddp/exact_channel.h"
#include "treadle/train/ddp/gradient_store.h"
#include "treadle/train/ddp/made_gradients.h"
#include "treadle/train/ddp/operations.h"
#include "treadle/train/ddp/parameter_list.h"
#include "treadle/train/ddp/pass_recorder.h"
#include "treadle/train/ddp/sparse_exchange.h"
#include "treadle/train/ddp/use_marks.h"

namespace treadle::ddp {

class GradientExchange {
 public:
  // Takes those of the trained ones, which are dense and the same on all ranks. `list` and `recorder` outlive it. They
  // fill buckets in `order`; if that is empty in reverse order, and from the second averaged pass on in that in which
  // gradients came on rank 0.
  GradientExchange(const ParameterList& list, ProcessGroup group, const BucketLimits& limits, UnusedParameters unused,
                   const std::vector<size_t>& order, std::shared_ptr<CommHook> hook, PassRecorder& recorder);

  MadeGradients& made() { return made_; }

  // A pass begins; null for a local one. `isShadow`: this rank has no batch left (CommHook::beginShadowPass). Returns
  // what the hook throws.
  Status begin(autograd::Pass* distributed, bool isShadow);
  // Leaves the buckets to operations that may still be under way, and takes others.
  void renewMemory();

  // The gradient of a parameter is there; again for each pass within the pass that comes to it. Begins the buckets that
  // are full, each after those before it. InvalidArgument: the gradient has a history. What the hook throws.
  Status add(size_t parameter, Operations& operations);
  // No gradient comes any more. Begins the other buckets, in which a parameter without a gradient here is zero. Buckets
  // of a pass that has `failed` here, or that fails by this, go as they are: nobody uses them.
  Status sendRest(bool failed, Operations& operations);
  // The hook has thrown in this pass, so this rank begins nothing more of it, and does not know what the others begin.
  bool isOutOfStep() const { return isOutOfStep_; }
  // Begins the exact channel, which comes after the buckets, and is the first to say what is sparse.
  void sendChannel(const RankReport& own, Operations& operations);

  // Once that operation has ended well; the same on all ranks. Not OK: the pass fails on all.
  Status outcome() const;
  const ExactChannel& channel() const { return channel_; }
  // The pass goes well as far as all ranks know. The use, order and layouts that its channel shows hold from the next
  // pass on, also if this one fails here later. FailedPrecondition, on all ranks: the channel has no valid
  // order.
  Status learn();
  // The hook goes on with all buckets, in order, and begins anew those to which a gradient was added on some rank after
  // they had gone. Then begins to sum gradients whose average is sparse, and those that travel in no bucket.
  Status sendAgain(Operations& operations);
  // Whether the hook has more to do with a bucket. Then it goes on when all operations have ended well.
  bool areRoundsLeft() const;
  Status sendNextRound(Operations& operations);
  // All operations have ended well: averages, multiplied by `factor`, take the place of gradients.
  void put(double factor);

  // The same part by part: each bucket, and last what travels in none.

  size_t parts() const { return buckets_.size() + 1; }
  // Nothing more is sent of buckets, so each may be put as soon as its operations have ended. Once the exact channel
  // has come.
  bool isAllSent() const { return !areRoundsLeft() && !channel_.anyAgain(); }
  // By part: how many operations of the pass end before it is put, those of the parts before it among them.
  std::vector<size_t> operationEnds() const;
  // That has the average of a parameter. Nothing: no rank used it.
  std::optional<size_t> partOf(size_t parameter) const;
  // Returns the parameters that some rank used, whose averages are put.
  std::vector<size_t> put(size_t part, double factor);

  // And the hook gets to know. What the hook throws.
  void passAveraged();

  // The order of all parameters, also of those that are not sent.
  const std::vector<size_t>& order() const { return order_; }

 private:
  BucketPlan planned() const;
  ExactChannel newChannel() const;
  void replan();
  // A full bucket waits for those before it, so all ranks have one order.
  Status launchFull(Operations& operations);
  Status fill(Bucket& bucket, size_t position);
  Status fillAbsent(Bucket& bucket);
  Status checkRest();
  Status sendSparse(Operations& operations);
  Status checkNoHistory(size_t parameter) const;
  Status reduce(size_t bucket, Operations& operations);
  Status goOn(size_t bucket, Operations& operations);
  template <class F>
  Status callHook(F function);

  const at::Tensor& parameter(size_t index) const { return list_.trained()[index]; }
  OwnGradient gradientOf(size_t index) const { return store_->gradientOf(parameter(index), arrived_[index]); }

  const ParameterList& list_;
  const ProcessGroup group_;
  const BucketLimits limits_;
  const std::shared_ptr<CommHook> hook_;
  PassRecorder& recorder_;
  UseMarks uses_;
  SparseExchange sparse_;
  std::vector<size_t> order_;
  bool mayReorder_;  // once
  ArrivalOrder arrivals_;
  bool mustReplan_ = false;
  BucketPlan plan_;  // parameters in no bucket are marked in the channel, and sent after it if there is a gradient
  std::vector<Bucket> buckets_;
  ExactChannel channel_;
  MadeGradients made_;
  // These belong to the pass that is under way, or to the last one.
  bool isLocal_ = true;
  std::unique_ptr<GradientStore> store_;
  std::vector<bool> arrived_;
  std::vector<size_t> filled_;        // by bucket: how many of its parameters have arrived
  size_t launched_ = 0;               // buckets
  std::vector<size_t> operationsOf_;  // by part
  bool isOutOfStep_ = false;
  // Of the hook, which has them at its buckets: they go first.
  Exchange begun_;
  std::vector<std::optional<Reduction>> reductions_;  // by bucket; nothing: not begun, or done
};

}  // namespace treadle::ddp

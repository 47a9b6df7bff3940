#pragma once
// Several replicas of a module in one process, each computing in a thread of its own: data-parallel training on one
// machine without more processes. Their gradients are added before anything is sent, so W ranks with R replicas each
// train as W R ranks do, and send as much as W.
//
//   treadle::ReplicaSet<Net> replicas(ddp, {.replicas = 4});  // or of a module, where there is no group
//   for (const Batch& batch : batchesOfThisRank) {
//     const std::vector<at::Tensor> inputs = batch.input.tensor_split(4), targets = batch.target.tensor_split(4);
//     optimizer.zero_grad();
//     replicas.backward([&](NetImpl& replica, int i) {
//       if (inputs[i].size(0) == 0) return at::Tensor();  // of a short batch
//       return lossOf(replica.forward(inputs[i]), targets[i]);
//     });
//     optimizer.step();
//   }
//
// A replica is made once, by a function of the program or as a clone. Its parameters share memory with the module's: it
// sees each step of an optimizer, and whatever else changes values, without a copy. Before each pass it also becomes
// like the module in what is frozen or trained, in training or evaluation mode, and in its buffers.
//
// Clones (torch::nn::Module::clone) need a class that is torch::nn::Cloneable. All other members of the class keep the
// values that they had when the set was made, and tensors that are not registered are shared. libtorch clones the
// modules in a Sequential, ModuleList or ModuleDict anew. A member that refers to one of them refers in a clone to a
// module outside the replica, which is not trained: take it from the container in forward, or make replicas by a
// function, which has none of these limits.
//
// Unlike torch's data_parallel: nothing is cloned or broadcast in a pass, no output is gathered, random numbers do not
// depend on the order of threads, and the gradients of parts with different numbers of samples have weights.
//
// A pass ends the OpenMP threads that the caller's last operator has left, as they would look for more work on the
// replicas' cores: what a program keeps in such threads is gone, and its next operator in several threads starts
// others.
//
// The gradients of the replicas are added in their order, after all of them have ended, and then `.grad` of the module
// gets the sum as in one plain backward pass. So hooks of parameters, noSync(), join(), hooks that compress, steps
// within the pass, clipping and GradScaler work as without it. The replicas' own passes do not overlap with what is
// sent, and DdpStats counts them as `outside`.

#include <functional>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "treadle/train/ddp/distributed_data_parallel.h"
#include "treadle/train/ddp/replica_loss.h"
#include "treadle/train/ddp/replica_set_options.h"
#include "treadle/train/ddp/replicas.h"

namespace treadle {

// M: a module class or a holder (torch::nn::Linear), as in DistributedDataParallel. It shares ownership of the module.
// One thread uses it at a time. It owns a thread for each replica, and ends it when it is destroyed.
template <class M>
class ReplicaSet {
 public:
  using Module = typename DistributedDataParallel<M>::Module;

  // Makes a replica: a new module each time, as the set's module was made and converted. Its values do not matter.
  using Make = std::function<std::shared_ptr<Module>()>;

  // Without `make`, replicas are clones. ArgumentError: the module is not torch::nn::Cloneable and cannot be cloned
  // otherwise; a replica has other parameters, buffers or submodules than the module, or tensors of the module or of
  // another replica; the module has a SyncBatchNorm, or an Embedding with max_norm, which writes its weight in forward;
  // options out of range, or the divisor kActiveRanks. ResourceError: no more threads can be started. And what `make`
  // throws. at::set_num_threads() must not be called meanwhile.
  explicit ReplicaSet(std::shared_ptr<Module> module, ReplicaSetOptions options = {}, const Make& make = {})
      : ReplicaSet(std::move(module), options, make, nullptr) {}
  explicit ReplicaSet(const M& holder, ReplicaSetOptions options = {}, const Make& make = {})
    requires(!std::is_same_v<M, Module>)
      : ReplicaSet(holder.ptr(), options, make, nullptr) {}
  // Has replicas of the module of `ddp`, which outlives the set; divisor and buffers are as in the options of `ddp`.
  // Every rank calls it, between passes: it compares what each has. ArgumentError on all ranks: their numbers of
  // replicas differ, unless the divisor is kWeights, or kSum without Buffers::kAverage.
  explicit ReplicaSet(DistributedDataParallel<M>& ddp, ReplicaSetOptions options = {}, const Make& make = {})
      : ReplicaSet(ddp.module(), optionsOf(ddp, options), make, &ddp) {
    ddp::checkNumberOfReplicas(ddp.group(), optionsOf(ddp, options));
  }

  // Calls `function(replica, index)` for each replica, all at once in their own threads. It returns the loss of its
  // part of the batch, a tensor or a ReplicaLoss. When all have returned, the backward pass of each loss follows in the
  // thread of its replica. After all of them, the gradients are added to `.grad` of the module as by one backward pass:
  // divided as the divisor says, and with a DistributedDataParallel averaged over the ranks. Returns the losses by
  // replica, detached. It waits for the function as long as that takes, so functions may not wait for backward passes.
  //
  // A replica without a batch returns an undefined tensor: it counts as a rank without one. If none has a gradient, it
  // is ddp.skipPass(), or nothing without a group.
  //
  // Buffers: each replica begins with the module's. After the pass these are the mean of the replicas' with
  // Buffers::kAverage, for floats and weighted as the divisor says, and otherwise those of the first replica that has a
  // batch; a DistributedDataParallel then exchanges them.
  //
  // Random numbers of the function on CPU tensors, as in Dropout, are the replica's own, from a seed that is drawn from
  // libtorch's generator in each pass: torch::manual_seed makes them the same in each run. The threads begin, when the
  // set is made, with gradients enabled and without the caller's guards, such as Autocast: make those in the function.
  //
  // All trained tensors that a loss depends on are parameters of its replica. A leaf that one loss alone depends on, as
  // an input may be, gets the gradient of that loss, undivided. What a node computes only in the backward pass, such as
  // a checkpoint, is not looked at. The function leaves the values of parameters, and whether they are frozen, alone.
  //
  // If the function or a backward pass throws, in one replica or in several, it is thrown here when all have ended,
  // with the number of the first replica in front: an Error by its own class, other exceptions as RemoteError with
  // their type. Then the set has written neither `.grad` nor buffers of the module, and has sent nothing, so other
  // ranks wait for this one's next pass. What the functions did themselves stays (the forward of a captured module
  // writes its buffers), as do a seed that was drawn, and gradients and hooks of other leaves if a backward pass had
  // begun.
  //
  // StateError, before a backward pass begins: a loss depends on a parameter of the module itself or of another
  // replica, on a trained tensor that another loss depends on too, or on one of a DistributedDataParallel; it requires
  // no gradient; it has no weight with kWeights, or one without; all weights are 0, without a group; the function wrote
  // a parameter (others may have read it meanwhile, and it stays changed), froze one, or called backward itself. Also:
  // the set is in a backward() already; a parameter has another dtype, shape or device than when the set was made.
  // ArgumentError: a weight is negative, infinite or NaN. Then also what an averaged pass throws
  // (DistributedDataParallel).
  template <class F>
  std::vector<at::Tensor> backward(F&& function) {
    if (ddp_ != nullptr) ddp_->awaitAverages();
    ddp::ReplicaSums sums = replicas_->run([&](torch::nn::Module& replica, int index) -> ReplicaLoss {
      return function(static_cast<Module&>(replica), index);
    });
    if (ddp_ != nullptr && sums.gradients.empty()) {
      ddp_->skipPass();
    } else {
      if (ddp_ != nullptr && ddp_->options().divisor == Divisor::kWeights) ddp_->setWeight(sums.weight);
      ddp::accumulate(sums);
    }
    return std::move(sums.losses);
  }

  int size() const { return replicas_->size(); }

 private:
  ReplicaSet(std::shared_ptr<Module> module, const ReplicaSetOptions& options, const Make& make,
             DistributedDataParallel<M>* ddp)
      : replicas_(std::make_unique<ddp::Replicas>(std::move(module), options, make, ddp != nullptr)), ddp_(ddp) {}

  static ReplicaSetOptions optionsOf(const DistributedDataParallel<M>& ddp, ReplicaSetOptions options) {
    options.divisor = ddp.options().divisor;
    options.buffers = ddp.options().buffers;
    return options;
  }

  std::unique_ptr<ddp::Replicas> replicas_;
  DistributedDataParallel<M>* ddp_;  // null without a group
};

}  // namespace treadle

#pragma once
// Several replicas of a module in one process: clones, whose parameters share memory with the module's and have
// gradients of their own. What ReplicaSet (replica_set.h) does, whatever the class of the module is.
//
// Owned by a ReplicaSet; used by one thread at a time. A pass goes in steps: the clones become like the module, a
// thread for each runs the program's function, and when all have returned losses that can be used, its backward pass.
// When these have ended well, buffers are merged and gradients added, in the order of the replicas. So the sums have
// the same bits in each run, and until then the set has changed nothing.
//
// Memory: for each replica its buffers, and during a pass its gradients.

#include <torch/nn/module.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "treadle/core/base/status.h"
#include "treadle/core/group/group.h"
#include "treadle/train/ddp/buffer_sync.h"
#include "treadle/train/ddp/divisor.h"
#include "treadle/train/ddp/loss_leaves.h"
#include "treadle/train/ddp/module_clone.h"
#include "treadle/train/ddp/replica_threads.h"

namespace treadle {

struct ReplicaSetOptions {
  int replicas = 2;  // how many, 1 to 256
  // Threads of libtorch in each replica's thread; sums of floating-point numbers may depend on it in their last bits.
  // 0: at::get_num_threads() of the thread that constructs the set, divided by `replicas`.
  int intraOpThreads = 0;
  // As in DdpOptions, a replica in place of a rank. With a DistributedDataParallel those of its options count instead.
  Divisor divisor = Divisor::kWorldSize;
  Buffers buffers = Buffers::kOnce;
};

// What the function of a replica returns: its loss, of one element. Undefined: it has no batch.
struct ReplicaLoss {
  ReplicaLoss() = default;
  ReplicaLoss(at::Tensor loss) : loss(std::move(loss)) {}  // NOLINT: implicit, so that a function returns its loss
  ReplicaLoss(at::Tensor loss, double weight) : loss(std::move(loss)), weight(weight) {}

  at::Tensor loss;
  std::optional<double> weight;  // with Divisor::kWeights: its number of samples, say; the loss is a sum then
};

}  // namespace treadle

namespace treadle::ddp {

// The gradients of a pass, to be added to the module's.
struct ReplicaSums {
  std::vector<at::Tensor> parameters, gradients;  // those of the module that have one
  double weight = 0;                              // of all replicas, with Divisor::kWeights
  std::vector<at::Tensor> losses;                 // by replica, detached; undefined: it had no batch
};

class Replicas {
 public:
  using Function = std::function<ReplicaLoss(torch::nn::Module& replica, int index)>;

  // `isOfRank`: the module is one rank's replica, and DistributedDataParallel divides by weights. ArgumentError: the
  // module cannot be cloned, or its clone is another one; options out of range.
  Replicas(std::shared_ptr<torch::nn::Module> module, const ReplicaSetOptions& options, bool isOfRank);

  // Throws what ReplicaSet::backward throws, except for averaging.
  ReplicaSums run(const Function& function);
  int size() const { return options_.replicas; }

 private:
  // What the function of a replica has returned.
  struct Outcome {
    at::Tensor loss;  // detached once its backward pass has begun
    double weight = 0;
    std::vector<LossLeaf> leaves;
  };
  // Whose parameter a tensor is.
  struct Owner {
    std::optional<int> replica;  // nothing: the module
    const ClonedTensor* parameter;
  };

  void addReplica();
  void addOwners();
  Status checkUnchanged() const;
  void follow(size_t replica);
  void followVersions();
  void followModes();
  void runAll(uint64_t seed, const std::function<void(int)>& task);
  Outcome callFunction(const Function& function, int index) const;
  std::vector<int64_t> versionsOf(int index) const;
  Status checkParameters(int index, const std::vector<int64_t>& versions) const;
  std::vector<Status> checkLeaves(const std::vector<Outcome>& outcomes) const;
  Status checkWeight(const ReplicaSums& sums) const;
  double divisorOf(const ReplicaSums& sums) const;
  void addUp(ReplicaSums& sums);
  void dropGradients();
  void mergeBuffers(const std::vector<Outcome>& outcomes, double weight);
  void mergeBuffer(ClonedTensor& buffer, size_t first, const std::vector<double>& shares) const;

  const std::shared_ptr<torch::nn::Module> module_;
  const ReplicaSetOptions options_;
  const bool isOfRank_;
  std::vector<std::vector<ModulePair>> replicas_;  // of each, the clone of the module first
  std::vector<ClonedTensor> parameters_, buffers_;
  std::unordered_map<const c10::TensorImpl*, Owner> owners_;
  std::atomic<bool> isUnderWay_ = false;
  std::unique_ptr<ReplicaThreads> threads_;
};

// Every member of the group calls it. ArgumentError on all of them: the numbers of replicas differ, where the divisor
// or the mean of buffers would count a replica of one rank for more than that of another.
void checkNumberOfReplicas(const ProcessGroup& group, const ReplicaSetOptions& options);

// Adds the gradients to the module's as a backward pass does, with its hooks.
void accumulate(const ReplicaSums& sums);

}  // namespace treadle::ddp

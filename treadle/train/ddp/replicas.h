#pragma once
// The passes of several replicas of a module in one process. What ReplicaSet (replica_set.h) does, whatever the class
// of the module is.
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
#include <vector>

#include "treadle/core/base/status.h"
#include "treadle/train/ddp/replica_clones.h"
#include "treadle/train/ddp/replica_gradients.h"
#include "treadle/train/ddp/replica_loss.h"
#include "treadle/train/ddp/replica_set_options.h"
#include "treadle/train/ddp/replica_threads.h"

namespace treadle::ddp {

class Replicas {
 public:
  using Function = std::function<ReplicaLoss(torch::nn::Module& replica, int index)>;

  // `isOfRank`: the module is one rank's replica, and DistributedDataParallel divides by weights. ArgumentError: the
  // module cannot be cloned, or its clone is another one; options out of range.
  Replicas(std::shared_ptr<torch::nn::Module> module, const ReplicaSetOptions& options, const MakeModule& make,
           bool isOfRank);

  // Throws what ReplicaSet::backward throws, except for averaging.
  ReplicaSums run(const Function& function);
  int size() const { return options_.replicas; }

 private:
  void runAll(uint64_t seed, const std::function<void(size_t replica)>& task);
  std::vector<ReplicaLoss> callFunctions(const Function& function, uint64_t seed);
  ReplicaLoss callFunction(const Function& function, size_t replica) const;
  void computeGradients(std::vector<ReplicaLoss>& results, uint64_t seed);
  Status checkWeight(const ReplicaSums& sums) const;
  double divisorOf(const ReplicaSums& sums) const;
  void mergeBuffersOf(const std::vector<ReplicaLoss>& results, double weight);

  const ReplicaSetOptions options_;
  const bool isOfRank_;
  ReplicaClones clones_;
  const LeafOwners owners_;
  std::atomic<bool> isUnderWay_ = false;
  ReplicaThreads threads_;
};

}  // namespace treadle::ddp

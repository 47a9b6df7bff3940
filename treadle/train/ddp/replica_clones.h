#pragma once
// The replicas of a module in one process: clones, whose parameters share memory with the module's and have gradients
// of their own. A program may make them itself.
//
// Owned by Replicas. What is const may be called by several threads at once, each for its own replica. Memory: the
// buffers of each replica.

#include <torch/nn/module.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "treadle/core/base/status.h"
#include "treadle/train/ddp/module_clone.h"

namespace treadle::ddp {

class ReplicaClones {
 public:
  // ArgumentError: the module cannot be cloned, or its clone (or what `make` makes) is another one, or it has layers
  // that replicas cannot have.
  ReplicaClones(std::shared_ptr<torch::nn::Module> module, int count, const MakeModule& make);

  torch::nn::Module& module(size_t replica) const { return *replicas_[replica].front().clone; }
  std::vector<ClonedTensor>& parameters() { return parameters_; }
  std::vector<ClonedTensor>& buffers() { return buffers_; }

  // FailedPrecondition: a parameter of the module has another dtype, shape or device than when this was made.
  Status checkUnchanged() const;
  // All replicas become like the module, but for gradients.
  void follow();

  // Of the replica's parameters, to be compared later.
  std::vector<int64_t> versionsOf(size_t replica) const;
  // FailedPrecondition: since then the replica's function has written a parameter, frozen or unfrozen one, or computed
  // a gradient.
  Status checkUntouched(size_t replica, const std::vector<int64_t>& versions) const;

 private:
  void add(std::shared_ptr<torch::nn::Module> clone);
  void followTensors(size_t replica);
  void followVersions();
  void followModes();

  const std::shared_ptr<torch::nn::Module> module_;
  std::vector<std::vector<ModulePair>> replicas_;  // of each, the clone of the module first
  std::vector<ClonedTensor> parameters_, buffers_;
};

}  // namespace treadle::ddp

#include "treadle/train/ddp/replica_clones.h"

#include <ATen/core/grad_mode.h>
#include <torch/nn/modules/embedding.h>

#include <string>
#include <utility>

#include "treadle/core/base/error.h"
#include "treadle/train/ddp/named_tensors.h"
#include "treadle/train/ddp/replica_buffers.h"
#include "treadle/train/ddp/same_type.h"
#include "treadle/train/ddp/sync_batch_norm.h"
#include "treadle/train/ddp/thread_generator.h"

namespace treadle::ddp {
namespace {

bool hasMaxNorm(const torch::nn::Module& module) {
  const auto* embedding = dynamic_cast<const torch::nn::EmbeddingImpl*>(&module);
  const auto* bag = dynamic_cast<const torch::nn::EmbeddingBagImpl*>(&module);
  return (embedding != nullptr && embedding->options.max_norm()) || (bag != nullptr && bag->options.max_norm());
}

void refuseLayers(const torch::nn::Module& module) {
  for (const auto& submodule : module.modules()) {
    if (hasMaxNorm(*submodule))
      raise(invalidArgument(
          "a ReplicaSet cannot have an Embedding with max_norm, whose forward writes the weight that all replicas "
          "share: normalize it after the optimizer's step"));
    if (dynamic_cast<const SyncBatchNormImpl*>(submodule.get()) != nullptr)
      raise(invalidArgument(
          "a ReplicaSet cannot have a SyncBatchNorm, whose exchanges its threads would come to in any order: use "
          "BatchNorm, or a rank for each replica"));
  }
}

int64_t versionOf(const at::Tensor& tensor) { return tensor.is_inference() ? 0 : tensor._version(); }

}  // namespace

ReplicaClones::ReplicaClones(std::shared_ptr<torch::nn::Module> module, int count, const MakeModule& make)
    : module_(std::move(module)) {
  if (!module_) raise(invalidArgument("a ReplicaSet was given no module"));
  refuseLayers(*module_);
  for (NamedTensor& parameter : parametersOf(*module_))
    parameters_.push_back({std::move(parameter.names), parameter.tensor, {}, versionOf(parameter.tensor)});
  for (NamedTensor& buffer : buffersOf(*module_)) buffers_.push_back({std::move(buffer.names), buffer.tensor});
  const ThreadGenerator random(0);  // new modules draw values, which are replaced: the program's generator stays
  for (int replica = 0; replica < count; ++replica) add(cloneOf(*module_, make));
  refuseSharedTensors(parameters_);
  refuseSharedTensors(buffers_);
}

void ReplicaClones::add(std::shared_ptr<torch::nn::Module> clone) {
  replicas_.push_back(pairsOf(module_, std::move(clone)));
  addClone(replicas_.back(), parameters_, buffers_);
  followTensors(replicas_.size() - 1);  // lets go of the clone's own memory
}

Status ReplicaClones::checkUnchanged() const {
  for (const ClonedTensor& parameter : parameters_) {
    const at::Tensor &now = parameter.tensor, &was = parameter.ofClones.front().front();
    if (haveSameType(now, was)) continue;
    return failedPrecondition("parameter " + parameter.names + " is of " + toString(now.scalar_type()) + " " +
                              c10::str(now.sizes()) + " on " + now.device().str() + " now, and was of " +
                              toString(was.scalar_type()) + " " + c10::str(was.sizes()) + " on " + was.device().str() +
                              " when ReplicaSet was constructed: construct it after the conversion");
  }
  return {};
}

void ReplicaClones::follow() {
  for (size_t replica = 0; replica < replicas_.size(); ++replica) followTensors(replica);
  followVersions();
  followModes();
}

// The replicas' parameters get the memory of the module's again, if these have got other memory since, and are frozen
// or trained as these are.
void ReplicaClones::followTensors(size_t replica) {
  const at::NoGradGuard noGrad;
  for (ClonedTensor& parameter : parameters_)
    for (at::Tensor& own : parameter.ofClones[replica]) {
      if (own.const_data_ptr() != parameter.tensor.const_data_ptr() || own.strides() != parameter.tensor.strides())
        own.set_data(parameter.tensor.variable_data());
      own.set_requires_grad(parameter.tensor.requires_grad());
    }
  resetBuffers(buffers_, replica);
}

// A graph that a function keeps over passes then notices that a parameter which it has saved was changed meanwhile.
void ReplicaClones::followVersions() {
  for (ClonedTensor& parameter : parameters_) {
    const int64_t version = versionOf(parameter.tensor);
    if (std::exchange(parameter.version, version) == version) continue;
    for (std::vector<at::Tensor>& ofClone : parameter.ofClones)
      for (at::Tensor& own : ofClone) own.unsafeGetTensorImpl()->bump_version();
  }
}

// Modules come before their submodules, so a mode that a submodule has by itself is set last.
void ReplicaClones::followModes() {
  for (const std::vector<ModulePair>& replica : replicas_)
    for (const ModulePair& pair : replica)
      if (pair.clone->is_training() != pair.original->is_training()) pair.clone->train(pair.original->is_training());
}

std::vector<int64_t> ReplicaClones::versionsOf(size_t replica) const {
  std::vector<int64_t> versions;
  for (const ClonedTensor& parameter : parameters_)
    for (const at::Tensor& own : parameter.ofClones[replica]) versions.push_back(versionOf(own));
  return versions;
}

Status ReplicaClones::checkUntouched(size_t replica, const std::vector<int64_t>& versions) const {
  auto before = versions.begin();
  for (const ClonedTensor& parameter : parameters_)
    for (const at::Tensor& own : parameter.ofClones[replica]) {
      if (versionOf(own) != *before++)
        return failedPrecondition("its function wrote parameter " + parameter.names +
                                  ", whose memory all replicas share: change parameters between passes");
      if (own.requires_grad() != parameter.tensor.requires_grad())
        return failedPrecondition("its function froze or unfroze parameter " + parameter.names +
                                  ": do that to the module, between passes");
      if (own.grad().defined())
        return failedPrecondition("its function computed a gradient of parameter " + parameter.names +
                                  ": return the loss, and ReplicaSet calls backward()");
    }
  return {};
}

}  // namespace treadle::ddp

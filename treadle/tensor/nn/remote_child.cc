#include "treadle/tensor/nn/remote_child.h"

#include <set>

namespace treadle {
namespace {

// `makeRRef` takes the tensor itself, which shares its implementation with the module's: a step is seen by forward.
// Once each, also where a module or tensor is there under several names (tied weights).
void collect(Worker& worker, torch::nn::Module& module, bool buffers, std::set<const void*>& known,
             std::vector<RRef<at::Tensor>>& references) {
  if (!known.insert(&module).second) return;
  for (const at::Tensor& tensor : buffers ? module.buffers(false) : module.parameters(false))
    if (known.insert(tensor.unsafeGetTensorImpl()).second) references.push_back(worker.makeRRef(tensor));
  if (auto* remote = dynamic_cast<nn::RemoteChild*>(&module))
    for (RRef<at::Tensor>& theirs : buffers ? remote->remoteBuffers() : remote->remoteParameters())
      references.push_back(std::move(theirs));
  for (const auto& child : module.children()) collect(worker, *child, buffers, known, references);
}

}  // namespace

std::vector<RRef<at::Tensor>> parameterRefs(Worker& worker, torch::nn::Module& module) {
  std::vector<RRef<at::Tensor>> references;
  std::set<const void*> known;
  collect(worker, module, false, known, references);
  return references;
}

std::vector<RRef<at::Tensor>> nn::bufferRefs(Worker& worker, torch::nn::Module& module) {
  std::vector<RRef<at::Tensor>> references;
  std::set<const void*> known;
  collect(worker, module, true, known, references);
  return references;
}

}  // namespace treadle

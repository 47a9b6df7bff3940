#include "treadle/train/ddp/module_clone.h"

#include <torch/nn/modules/container/sequential.h>

#include <typeinfo>
#include <unordered_map>
#include <unordered_set>

#include "treadle/core/base/error.h"
#include "treadle/train/ddp/same_type.h"

namespace treadle::ddp {
namespace {

using ModulePtr = std::shared_ptr<torch::nn::Module>;
using TensorsByName = torch::OrderedDict<std::string, at::Tensor>;

[[noreturn]] void refuse(const std::string& what) {
  raise(invalidArgument(what + ": a replica needs all that the module has, by the module's reset() or by the function "
                               "that makes replicas"));
}

void checkClass(const torch::nn::Module& module, const torch::nn::Module& clone) {
  if (typeid(module) != typeid(clone))
    refuse("the clone of a " + demangled(typeid(module).name()) + " is a " + demangled(typeid(clone).name()));
}

// A Sequential numbers the modules of its clone, whatever their names are.
ModulePtr cloneOfChild(const torch::nn::Module& module, const torch::nn::Module& clone, size_t child,
                       const std::string& name) {
  const auto others = clone.named_children();
  if (dynamic_cast<const torch::nn::SequentialImpl*>(&module) != nullptr) return others[child].value();
  const ModulePtr* found = others.find(name);
  if (found == nullptr) refuse("submodule '" + name + "' is missing in the clone of its module");
  return *found;
}

void addPairs(const ModulePtr& module, const ModulePtr& clone, std::vector<ModulePair>& pairs) {
  checkClass(*module, *clone);
  pairs.push_back({module, clone});
  const auto children = module->named_children();
  if (children.size() != clone->children().size())
    refuse("a " + demangled(typeid(*module.get()).name()) + " and its clone have different numbers of submodules");
  for (size_t child = 0; child < children.size(); ++child)
    addPairs(children[child].value(), cloneOfChild(*module, *clone, child, children[child].key()), pairs);
}

// Members of a clone refer to its tensors and cannot be made to refer to others, so a tensor that submodules share may
// have become several.
class Matcher {
 public:
  Matcher(std::vector<ClonedTensor>& tensors, const char* kind) : kind_(kind) {
    for (ClonedTensor& tensor : tensors) {
      tensor.ofClones.emplace_back();
      known_[tensor.tensor.unsafeGetTensorImpl()] = &tensor;
    }
  }

  void match(const TensorsByName& ofModule, const TensorsByName& ofClone) {
    if (ofModule.size() != ofClone.size())
      refuse("a clone has " + std::to_string(ofClone.size()) + " " + kind_ + "s where its module has " +
             std::to_string(ofModule.size()));
    for (const auto& entry : ofModule) {
      const auto known = known_.find(entry.value().unsafeGetTensorImpl());
      if (known == known_.end()) continue;  // a buffer that is a parameter too
      ClonedTensor& tensor = *known->second;
      const std::string what = std::string(kind_) + " " + tensor.names;
      const at::Tensor* own = ofClone.find(entry.key());
      if (own == nullptr || !haveSameType(*own, tensor.tensor)) refuse(what + " is another one in the clone");
      const auto [place, isNew] = matched_.try_emplace(own->unsafeGetTensorImpl(), &tensor);
      if (place->second != &tensor) refuse(what + " is one tensor with another in the clone, and not in the module");
      if (isNew) tensor.ofClones.back().push_back(*own);
    }
  }

 private:
  const char* const kind_;
  std::unordered_map<const c10::TensorImpl*, ClonedTensor*> known_, matched_;
};

}  // namespace

ModulePtr cloneOf(const torch::nn::Module& module, const MakeModule& make) {
  ModulePtr clone;
  try {
    clone = make ? make() : module.clone();
  } catch (const c10::Error& error) {
    if (make) throw;
    raise(invalidArgument("a ReplicaSet needs a function that makes replicas, or a module that can be cloned: " +
                          error.msg()));
  }
  if (!clone)
    raise(invalidArgument(std::string(make ? "the function that makes replicas" : "clone() of the module") +
                          " returned nothing"));
  checkClass(module, *clone);
  return clone;
}

std::vector<ModulePair> pairsOf(const ModulePtr& module, const ModulePtr& clone) {
  std::vector<ModulePair> pairs;
  addPairs(module, clone, pairs);
  return pairs;
}

void addClone(const std::vector<ModulePair>& pairs, std::vector<ClonedTensor>& parameters,
              std::vector<ClonedTensor>& buffers) {
  Matcher ofParameters(parameters, "parameter"), ofBuffers(buffers, "buffer");
  for (const ModulePair& pair : pairs) {
    ofParameters.match(pair.original->named_parameters(false), pair.clone->named_parameters(false));
    ofBuffers.match(pair.original->named_buffers(false), pair.clone->named_buffers(false));
  }
  for (const ClonedTensor& buffer : buffers)
    if (buffer.ofClones.back().size() > 1)
      refuse("buffer " + buffer.names +
             " of the module is several tensors in its clone, which could not be kept equal");
}

void refuseSharedTensors(const std::vector<ClonedTensor>& tensors) {
  std::unordered_set<const c10::TensorImpl*> seen;
  auto add = [&](const at::Tensor& tensor, const std::string& names) {
    if (!seen.insert(tensor.unsafeGetTensorImpl()).second)
      refuse("tensor " + names + " of a clone is that of the module or of another clone");
  };
  for (const ClonedTensor& tensor : tensors) add(tensor.tensor, tensor.names);
  for (const ClonedTensor& tensor : tensors)
    for (const std::vector<at::Tensor>& ofClone : tensor.ofClones)
      for (const at::Tensor& own : ofClone) add(own, tensor.names);
}

}  // namespace treadle::ddp

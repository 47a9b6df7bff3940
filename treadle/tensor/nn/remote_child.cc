#include "treadle/tensor/nn/remote_child.h"

#include <algorithm>
#include <functional>
#include <map>
#include <set>

namespace treadle {
namespace {

using References = std::vector<RRef<at::Tensor>>;

// A walk over a local module and all modules in it.
struct Walk {
  Worker& worker;
  const bool buffers;
  std::set<const void*> known = {};  // modules and tensors
  References references = {};
  bool reachesOthers = false;

  // `makeRRef` takes the tensor itself, which shares its implementation with the module's: a step is seen by forward.
  // Once each, also where a module or tensor is there under several names (tied weights).
  void collect(torch::nn::Module& module) {
    if (!known.insert(&module).second) return;
    for (const at::Tensor& tensor : buffers ? module.buffers(false) : module.parameters(false))
      if (known.insert(tensor.unsafeGetTensorImpl()).second) references.push_back(worker.makeRRef(tensor));
    if (auto* remote = dynamic_cast<nn::RemoteChild*>(&module)) {
      reachesOthers = true;
      for (RRef<at::Tensor>& theirs : buffers ? remote->remoteBuffers() : remote->remoteParameters())
        references.push_back(std::move(theirs));
    }
    for (const auto& child : module.children()) collect(*child);
  }
};

// Only their owner knows which references are to one tensor: several remote modules may be, or hold, the same.
References withoutRepeated(Worker& worker, const References& references) {
  std::map<int, std::vector<size_t>> placesOf;  // by owner
  for (size_t place = 0; place < references.size(); ++place) placesOf[references[place].owner().rank].push_back(place);
  std::vector<std::pair<const std::vector<size_t>*, Future<std::vector<int64_t>>>> asked;
  for (const auto& [owner, places] : placesOf) {
    References theirs;
    for (size_t place : places) theirs.push_back(references[place]);
    asked.emplace_back(&places, worker.async<&nn::firstOfEachTensor>(owner, theirs));
  }
  std::set<size_t> kept;
  for (auto& [places, answer] : asked)
    for (int64_t index : nn::checkedFirsts(answer.wait(), places->size()))
      kept.insert(places->at(static_cast<size_t>(index)));
  References each;
  for (size_t place : kept) each.push_back(references[place]);
  return each;
}

References referencesOf(Worker& worker, torch::nn::Module& module, bool buffers) {
  Walk walk{worker, buffers};
  walk.collect(module);
  return walk.reachesOthers ? withoutRepeated(worker, walk.references) : walk.references;
}

}  // namespace

std::vector<int64_t> nn::firstOfEachTensor(const std::vector<RRef<at::Tensor>>& references) {
  std::set<const c10::TensorImpl*> known;
  std::vector<int64_t> first;
  for (size_t index = 0; index < references.size(); ++index)
    if (known.insert(references[index].localValue().unsafeGetTensorImpl()).second)
      first.push_back(static_cast<int64_t>(index));
  return first;
}

std::vector<int64_t> nn::checkedFirsts(std::vector<int64_t> first, size_t references) {
  const bool ascends = std::ranges::adjacent_find(first, std::greater_equal<>()) == first.end();
  if (!ascends || first.empty() || first.front() != 0 || first.back() >= static_cast<int64_t>(references))
    raise(dataLoss("the owner of " + std::to_string(references) +
                   " tensors answered which of them are the same with places that there are not"));
  return first;
}

Functions nn::moduleFunctions() { return Functions().add<&firstOfEachTensor>("treadle.nn.firstOfEachTensor"); }

std::vector<RRef<at::Tensor>> parameterRefs(Worker& worker, torch::nn::Module& module) {
  return referencesOf(worker, module, false);
}

std::vector<RRef<at::Tensor>> nn::bufferRefs(Worker& worker, torch::nn::Module& module) {
  return referencesOf(worker, module, true);
}

}  // namespace treadle

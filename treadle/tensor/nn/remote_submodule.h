#pragma once
// A RemoteModule as a submodule: what register_module takes, so that a module whose parts live on several workers is
// one module. parameterRefs, stateOf and loadState reach through it, and so do train, eval and to of the module that
// has it. libtorch's own functions over modules (parameters, save, clone) see no tensors in it.
//
//   struct NetImpl : torch::nn::Module {
//     explicit NetImpl(treadle::RemoteModule<torch::nn::Embedding> words)
//         : words(register_module("words", treadle::RemoteSubmodule<torch::nn::Embedding>(words))) {}
//     treadle::RemoteSubmodule<torch::nn::Embedding> words;
//   };
//
// Threads as for RemoteModule.

#include "treadle/tensor/nn/remote_child.h"
#include "treadle/tensor/nn/remote_module.h"

namespace treadle {

template <class M>
class RemoteSubmoduleImpl final : public torch::nn::Module, public nn::RemoteChild {
 public:
  explicit RemoteSubmoduleImpl(RemoteModule<M> module)
      : torch::nn::Module("RemoteSubmodule"), module_(std::move(module)) {}
  // Of a module that is owned by others, whose class has one name here.
  RemoteSubmoduleImpl(Worker& worker, RRef<nn::Impl<M>> module)
      : RemoteSubmoduleImpl(RemoteModule<M>(worker, std::move(module))) {}

  template <class... A>
  auto forward(const A&... arguments) {
    return module_.forward(arguments...);
  }
  template <class... A>
  auto forwardAsync(const A&... arguments) {
    return module_.forwardAsync(arguments...);
  }
  const RemoteModule<M>& remoteModule() const { return module_; }

  std::vector<RRef<at::Tensor>> remoteParameters() const override { return module_.remoteParameters(); }
  std::vector<RRef<at::Tensor>> remoteBuffers() const override { return module_.remoteBuffers(); }
  ModuleState state() const override { return module_.state(); }
  void load(const ModuleState& state) override { module_.load(state); }

  void train(bool on = true) override {
    torch::nn::Module::train(on);
    module_.train(on);
  }
  // libtorch's signatures. A device is one of the owner's.
  void to(torch::Device device, torch::Dtype type, bool = false) override {
    module_.to(type);  // first, as it may be refused
    module_.to(device);
  }
  void to(torch::Dtype type, bool = false) override { module_.to(type); }
  void to(torch::Device device, bool = false) override { module_.to(device); }

 private:
  RemoteModule<M> module_;
};

template <class M>
class RemoteSubmodule : public torch::nn::ModuleHolder<RemoteSubmoduleImpl<M>> {
 public:
  using torch::nn::ModuleHolder<RemoteSubmoduleImpl<M>>::ModuleHolder;
};

}  // namespace treadle

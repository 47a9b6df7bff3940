#pragma once
// A RemoteModule as a submodule, for register_module: a module whose parts live on several workers becomes one module.
// parameterRefs, stateOf and loadState reach through it, and so do train, eval and to of the parent module. libtorch's
// own functions over modules (parameters, save, clone) see no tensors in it.
//
//   struct NetImpl : torch::nn::Module {
//     explicit NetImpl(treadle::RemoteModule<torch::nn::Embedding> words)
//         : words(register_module("words", treadle::RemoteSubmodule<torch::nn::Embedding>(words))) {}
//     treadle::RemoteSubmodule<torch::nn::Embedding> words;
//   };
//
// The thread rules are those of RemoteModule.

#include "treadle/tensor/nn/remote_child.h"
#include "treadle/tensor/nn/remote_module.h"

namespace treadle {

template <class M>
class RemoteSubmoduleImpl final : public torch::nn::Module, public nn::RemoteChild {
 public:
  explicit RemoteSubmoduleImpl(RemoteModule<M> module)
      : torch::nn::Module("RemoteSubmodule"), module_(std::move(module)) {}
  // For an existing module of another worker, whose class has exactly one name here.
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
  // libtorch's signatures. `device` is a device of the owner.
  void to(torch::Device device, torch::Dtype type, bool = false) override {
    module_.to(type);  // first, because it may be refused
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

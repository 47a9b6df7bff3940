#pragma once
// The functions that make modules of one class on a worker and let others use them: a maker, forward, the parameters
// and buffers, the state, train/eval, conversion. `addModule` gives them names ("EmbeddingBag", "EmbeddingBag.forward",
// ...) on the worker where modules live, `declareModule` on workers that only use them.
//
// libtorch's option structs cannot travel: a module is made from plain arguments, by a factory function or by its own
// constructor.
//
// One thread fills the Functions before the worker joins. The handlers run on the owner's pool. The references to a
// module own it: it is destroyed when the last RemoteModule or RRef to it on any worker is gone.

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include "treadle/core/worker/worker.h"
#include "treadle/tensor/bridge/tensor_codec.h"
#include "treadle/tensor/nn/forward.h"
#include "treadle/tensor/nn/remote_child.h"

namespace treadle {

namespace nn {

// The class behind a module holder, or the class itself: torch::nn::EmbeddingBag and EmbeddingBagImpl are the same.
template <class M>
struct ImplOf {
  using Type = M;
};
template <class M>
  requires requires { typename M::ContainedType; }
struct ImplOf<M> {
  using Type = typename M::ContainedType;
};
template <class M>
struct ImplOf<std::shared_ptr<M>> {
  using Type = M;
};
template <class M>
using Impl = typename ImplOf<M>::Type;

// The result of a factory as the object that references own: a holder gives up its pointer, and the object is not
// copied.
template <class M>
std::shared_ptr<Impl<M>> shareImpl(M module) {
  if constexpr (requires { module.ptr(); }) {
    return module.ptr();
  } else {
    return module;
  }
}

// Module::to of a module here. ArgumentError for a type that has no gradients.
void convertModule(torch::nn::Module& module, at::ScalarType type);

// ---- the functions, as handlers

// References for the caller, one per parameter. They keep the tensors alive, not the module.
template <class I>
std::vector<RRef<at::Tensor>> remoteParameters(CallContext& call, const RRef<I>& module) {
  return parameterRefs(call.worker(), module.localValue());
}
template <class I>
std::vector<RRef<at::Tensor>> remoteBuffers(CallContext& call, const RRef<I>& module) {
  return bufferRefs(call.worker(), module.localValue());
}

// Reads, and loads, the parameters and buffers by name.
template <class I>
ModuleState moduleState(const RRef<I>& module) {
  return stateOf(module.localValue());
}
template <class I>
void loadModule(const RRef<I>& module, const ModuleState& state) {
  loadState(module.localValue(), state);
}

// Module::to. The device is in libtorch's notation: "cpu", "cuda:0".
template <class I>
void convert(const RRef<I>& module, at::ScalarType type) {
  convertModule(module.localValue(), type);
}
template <class I>
void move(const RRef<I>& module, const std::string& device) {
  module.localValue().to(at::Device(device));
}

// Module::train of the module and all its children. Not part of any autograd graph.
template <class I>
void setTraining(const RRef<I>& module, bool on) {
  module.localValue().train(on);
}

// Compared between caller and callee, like any signature.
template <class I, class... Args>
std::string signatureOfMaker() {
  return rpc::makerSignature<I, Args...>();
}

// Makes a module with `make` from arguments of types `Args`. Numbers arrive widened (rpc/loose.h), because callers
// write literals; ArgumentError for one that its parameter cannot hold. An exception of `make` is the caller's failure,
// and appears at the first use of the reference.
template <class I, class... Args, class Make>
void makeModule(rpc::Decoder& decoder, const rpc::Responder& responder, Make make) {
  auto values = rpc::decodeArguments<std::tuple<rpc::Loose<Args>...>>(decoder, responder.call().inputs);
  std::shared_ptr<I> module =
      std::apply([&](auto&... value) { return make(rpc::tighten<std::decay_t<Args>>(std::move(value))...); }, values);
  if (!module) raise(failedPrecondition("the factory made no module"));
  responder.keep(rpc::ownedValue(std::move(module)));
}

template <auto Factory, class... Args>
void invokeFactory(CallContext&, rpc::Decoder& decoder, const rpc::Responder& responder) {
  using I = Impl<typename rpc::Traits<Factory>::Returned>;
  makeModule<I, Args...>(decoder, responder, [](auto&&... value) { return shareImpl(Factory(std::move(value)...)); });
}

template <class I, class... Args>
void invokeConstructor(CallContext&, rpc::Decoder& decoder, const rpc::Responder& responder) {
  makeModule<I, Args...>(decoder, responder, [](auto&&... value) { return std::make_shared<I>(std::move(value)...); });
}

template <auto F>
void putFunction(Functions& functions, const std::string& name, bool declared) {
  declared ? functions.declare<F>(name) : functions.add<F>(name);
}

// Adds the maker and the other functions of module class I: NAME, NAME.forward, NAME.parameters and so on. A null
// `invoke` only declares them. ArgumentError when one of the names means something else.
template <class I, class... Args>
Functions& putModule(Functions& functions, const std::string& name, rpc::Invoker invoke) {
  bool declared = invoke == nullptr;
  functions.put(&rpc::typeKey<I>, {name, rpc::makerSignature<I, Args...>(), invoke, false});
  functions.put(&forwardKey<I>,
                {name + ".forward", Forward<I>::signature(), declared ? nullptr : &Forward<I>::invoke, false});
  putFunction<&remoteParameters<I>>(functions, name + ".parameters", declared);
  putFunction<&remoteBuffers<I>>(functions, name + ".buffers", declared);
  putFunction<&moduleState<I>>(functions, name + ".state", declared);
  putFunction<&loadModule<I>>(functions, name + ".load", declared);
  putFunction<&setTraining<I>>(functions, name + ".train", declared);
  putFunction<&convert<I>>(functions, name + ".to", declared);
  putFunction<&move<I>>(functions, name + ".move", declared);
  return functions;
}

template <class Tuple>
struct Apply;
template <class... A>
struct Apply<std::tuple<A...>> {
  template <auto Factory>
  static Functions& factory(Functions& functions, const std::string& name, bool declared) {
    using I = Impl<typename rpc::Traits<Factory>::Returned>;
    return putModule<I, A...>(functions, name, declared ? nullptr : &invokeFactory<Factory, A...>);
  }
};

}  // namespace nn

// Modules made by `Factory` (Args...) -> holder or shared_ptr<M> can live on this worker. The arguments must be types
// that travel (rpc/codec.h). Returns `functions`; throws ArgumentError when a name is taken.
template <auto Factory>
Functions& addModule(Functions& functions, std::string name) {
  return nn::Apply<typename rpc::Traits<Factory>::Values>::template factory<Factory>(functions, name, false);
}
// Modules of class M (a holder or an Impl) made from Args... can live on this worker.
template <class M, class... Args>
Functions& addModule(Functions& functions, std::string name) {
  using I = nn::Impl<M>;
  return nn::putModule<I, Args...>(functions, name, &nn::invokeConstructor<I, Args...>);
}
// The same names for a worker that only uses such modules on others. It must be built from the same declarations: each
// call compares the signatures and throws StateError when they differ.
template <auto Factory>
Functions& declareModule(Functions& functions, std::string name) {
  return nn::Apply<typename rpc::Traits<Factory>::Values>::template factory<Factory>(functions, name, true);
}
template <class M, class... Args>
Functions& declareModule(Functions& functions, std::string name) {
  return nn::putModule<nn::Impl<M>, Args...>(functions, name, nullptr);
}

}  // namespace treadle

#pragma once
// What a worker needs so that modules of one class can be made on it and used from others: a maker, forward,
// the parameters and buffers, the state, train/eval, conversion. `addModule` gives these names ("EmbeddingBag",
// "EmbeddingBag.forward", ...) at the worker where modules live, `declareModule` at those that only use them.
//
// libtorch's option structs cannot travel: a module is made from plain arguments, by a factory function or by
// its own constructor.
//
// Functions are filled before the worker joins, by one thread. The handlers run on the owner's pool. A module
// is owned by the references to it: it goes when the last RemoteModule or RRef to it anywhere is gone.

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include "treadle/core/worker/worker.h"
#include "treadle/tensor/bridge/tensor_codec.h"
#include "treadle/tensor/nn/forward.h"
#include "treadle/tensor/nn/remote_child.h"

namespace treadle {

namespace nn {

// The class behind a module holder, or the class itself: torch::nn::EmbeddingBag and EmbeddingBagImpl are
// one.
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

// What a factory returned, as the object that references own: a holder gives up its pointer, the object is
// not copied.
template <class M>
std::shared_ptr<Impl<M>> shareImpl(M module) {
  if constexpr (requires { module.ptr(); }) {
    return module.ptr();
  } else {
    return module;
  }
}

// Module::to of a module here. ArgumentError for a type in which there are no gradients.
void convertModule(torch::nn::Module& module, at::ScalarType type);

// ---- the functions, as handlers

// References for the caller, one per parameter. They keep the tensors alive, not the module.
template <class I>
std::vector<RRef<at::Tensor>> remoteParameters(Call& call, const RRef<I>& module) {
  return parameterRefs(call.worker(), module.local());
}
template <class I>
std::vector<RRef<at::Tensor>> remoteBuffers(Call& call, const RRef<I>& module) {
  return bufferRefs(call.worker(), module.local());
}

// Parameters and buffers by name, and back.
template <class I>
ModuleState moduleState(const RRef<I>& module) {
  return stateOf(module.local());
}
template <class I>
void loadModule(const RRef<I>& module, const ModuleState& state) {
  loadState(module.local(), state);
}

// Module::to. The device is as libtorch writes it: "cpu", "cuda:0".
template <class I>
void convert(const RRef<I>& module, at::ScalarType type) {
  convertModule(module.local(), type);
}
template <class I>
void move(const RRef<I>& module, const std::string& device) {
  module.local().to(at::Device(device));
}

// Module::train of the module and all its children. Not part of any autograd graph.
template <class I>
void setTraining(const RRef<I>& module, bool on) {
  module.local().train(on);
}

// Compared between caller and callee, as for any function.
template <class I, class... Args>
std::string signatureOfMaker() {
  return rpc::makerSignature<I, Args...>();
}

// Makes a module from arguments of types `Args` with `make`. Numbers come widened (rpc/loose.h),
// because callers write literals; ArgumentError for one that its parameter cannot hold. What `make` throws is
// the caller's failure, and shows at the first use of the reference.
template <class I, class... Args, class Make>
void makeModule(rpc::Decoder& decoder, const rpc::Responder& responder, Make make) {
  auto values = rpc::decodeArguments<std::tuple<rpc::Loose<Args>...>>(decoder, responder.call().inputs);
  std::shared_ptr<I> module =
      std::apply([&](auto&... value) { return make(rpc::tighten<std::decay_t<Args>>(std::move(value))...); }, values);
  if (!module) raise(failedPrecondition("the factory made no module"));
  responder.keep(rpc::ownedValue(std::move(module)));
}

template <auto Factory, class... Args>
void invokeFactory(Call&, rpc::Decoder& decoder, const rpc::Responder& responder) {
  using I = Impl<typename rpc::Traits<Factory>::Returned>;
  makeModule<I, Args...>(decoder, responder, [](auto&&... value) { return shareImpl(Factory(std::move(value)...)); });
}

template <class I, class... Args>
void invokeConstructor(Call&, rpc::Decoder& decoder, const rpc::Responder& responder) {
  makeModule<I, Args...>(decoder, responder, [](auto&&... value) { return std::make_shared<I>(std::move(value)...); });
}

template <auto F>
void putFunction(Functions& functions, const std::string& name, bool declared) {
  declared ? functions.declare<F>(name) : functions.add<F>(name);
}

// The maker and what goes with every module of class I: NAME, NAME.forward, NAME.parameters and so on.
// `invoke` is null to declare only. ArgumentError when one of the names means something else.
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

// Modules made by `Factory` (Args...) -> holder or shared_ptr<M> can live on this worker. The arguments must
// be types that travel (rpc/codec.h). Returns `functions`; throws ArgumentError when a name is taken.
template <auto Factory>
Functions& addModule(Functions& functions, std::string name) {
  return nn::Apply<typename rpc::Traits<Factory>::Values>::template factory<Factory>(functions, name, false);
}
// Modules of class M, a holder or an Impl, made from Args... can live on this worker.
template <class M, class... Args>
Functions& addModule(Functions& functions, std::string name) {
  using I = nn::Impl<M>;
  return nn::putModule<I, Args...>(functions, name, &nn::invokeConstructor<I, Args...>);
}
// The same names for a worker that only uses such modules on others. It must be built from the same
// declarations: the signatures are compared at each call, StateError when they differ.
template <auto Factory>
Functions& declareModule(Functions& functions, std::string name) {
  return nn::Apply<typename rpc::Traits<Factory>::Values>::template factory<Factory>(functions, name, true);
}
template <class M, class... Args>
Functions& declareModule(Functions& functions, std::string name) {
  return nn::putModule<nn::Impl<M>, Args...>(functions, name, nullptr);
}

}  // namespace treadle

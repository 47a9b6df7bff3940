#pragma once
// A torch::nn module that lives on another worker. Calls of `forward` are part of the current autograd context's graph,
// like any call. A RemoteModule travels as an argument: every worker that gets it uses the same module. Any thread.
//
// It is a handle: copies mean the same module, which is destroyed with the last copy on any worker. It must not be used
// after its worker has left the job (StateError). Calls have the worker's rpcTimeout and throw what Worker::call
// throws: RemoteError when the module threw, TimeoutError, PeerLostError when the owner is lost.
//
// The remote functions of a module are named after the module ("EmbeddingBag.forward") and not looked up by its class:
// a class may have several names, and the owner must know the one that made the module.

#include "treadle/tensor/nn/module_functions.h"

namespace treadle {

// Selects one of several names under which a module class was added, as the third argument of RemoteModule's
// constructor.
struct ModuleName {
  std::string name;
};

template <class M>
class RemoteModule {
 public:
  using Impl = nn::Impl<M>;

  RemoteModule() = default;  // refers to nothing
  explicit RemoteModule(RRef<Impl> module, std::string name) : module_(std::move(module)), name_(std::move(name)) {}

  // For an existing module whose class has exactly one name here.
  RemoteModule(Worker& worker, RRef<Impl> module) : module_(std::move(module)), name_(onlyName(worker)) {}

  // Makes the module on `to`, where it was added under the one name that M has here. Returns at once; a failure to make
  // it shows at the first use. StateError when this worker has no name for M, ArgumentError for arguments of other
  // types or when M has several names, NotFoundError for an unknown worker.
  template <class... Args>
  RemoteModule(Worker& worker, const WorkerRef& to, const Args&... arguments)
      : RemoteModule(worker, to, ModuleName{onlyName(worker)}, arguments...) {}
  template <class... Args>
  RemoteModule(Worker& worker, const WorkerRef& to, const ModuleName& name, const Args&... arguments)
      : module_(make(worker, to, name.name, arguments...)), name_(name.name) {}

  // Calls the module's forward, with its own defaults for omitted arguments. Waits for the result, a copy of what the
  // module returned there.
  template <class... A>
  auto forward(const A&... arguments) const {
    auto alive = engineForValue();
    return rpc::callAndWait<typename nn::Forward<Impl>::Result>(*alive, forwardCall(arguments...));
  }
  template <class... A>
  auto forwardAsync(const A&... arguments) const {
    auto alive = engineForValue();
    return rpc::startCall<typename nn::Forward<Impl>::Result>(*alive, forwardCall(arguments...));
  }

  // References to the parameters (for DistributedOptimizer) and to the buffers of the module and all modules in it
  // (parameterRefs).
  std::vector<RRef<at::Tensor>> remoteParameters() const { return call<&nn::remoteParameters<Impl>>(".parameters"); }
  std::vector<RRef<at::Tensor>> remoteBuffers() const { return call<&nn::remoteBuffers<Impl>>(".buffers"); }
  // For member functions other than forward: moduleRef().call<&Impl::method>(...), where they were added.
  RRef<Impl> moduleRef() const { return module_; }
  WorkerInfo owner() const { return module_.owner(); }
  const std::string& name() const { return name_; }

  // Module::train on the owner, for all users of the module. Waits until it is done.
  void train(bool on = true) { call<&nn::setTraining<Impl>>(".train", on); }
  void eval() { train(false); }

  // Returns a copy of the parameters and buffers by name, like stateOf on the owner; `load` sets them, like loadState.
  ModuleState state() const { return call<&nn::moduleState<Impl>>(".state"); }
  void load(const ModuleState& state) { call<&nn::loadModule<Impl>>(".load", state); }

  // Module::to on the owner: changes the type of parameters and buffers (ArgumentError for integers), or moves them to
  // a device that the owner has. References to them stay valid; make optimizers after it. It gives parameters other
  // memory: nobody may use the module meanwhile, in a call, a backward pass or a step.
  void to(at::ScalarType type) { call<&nn::convert<Impl>>(".to", type); }
  void to(const at::Device& device) { call<&nn::move<Impl>>(".move", device.str()); }

 private:
  // The name to make the module by when the user gave none.
  static std::string onlyName(Worker& worker) {
    auto names = worker.engine().functions().entriesOf(&rpc::typeKey<Impl>);
    if (names.size() > 1)
      raise(invalidArgument(demangled(typeid(Impl).name()) + " has several names here, '" + names[0]->name + "' and '" +
                            names[1]->name + "'; say which with ModuleName{...} as the third argument"));
    return rpc::entryOf(worker.engine(), &rpc::typeKey<Impl>, [] { return demangled(typeid(Impl).name()); }).name;
  }

  // Like Worker::make, with one of the names that the class may have.
  template <class... Args>
  static RRef<Impl> make(Worker& worker, const WorkerRef& to, const std::string& name, const Args&... arguments) {
    const at::NoGradGuard noGrad;  // only forward is part of a graph
    const Functions::Entry* entry = nullptr;
    for (const Functions::Entry* one : worker.engine().functions().entriesOf(&rpc::typeKey<Impl>))
      if (one->name == name) entry = one;
    if (entry == nullptr)
      raise(failedPrecondition("this worker has no modules of class " + demangled(typeid(Impl).name()) + " named '" +
                               name + "'; give them that name with addModule or declareModule"));
    const int rank = to.rank(worker.engine().membership());
    return RRef<Impl>(worker.engine().sendForReference(rpc::makerCall<Impl>(*entry, rank, {}, arguments...)));
  }

  rpc::EngineUse engine() const { return rpc::engineOf(handleOf(module_), "RemoteModule"); }
  rpc::EngineUse engineForValue() const { return rpc::engineForValue(handleOf(module_), "RemoteModule"); }

  template <class... A>
  rpc::OutgoingCall forwardCall(const A&... arguments) const {
    rpc::OutgoingCall call =
        rpc::outgoingCall(module_.owner().rank, name_ + ".forward", nn::Forward<Impl>::signature(), {},
                          [&arguments...](rpc::Encoder& encoder) { nn::Forward<Impl>::encode(encoder, arguments...); });
    call.target = handleOf(module_);
    return call;
  }

  template <auto F, class... A>
  typename rpc::Traits<F>::Result call(const char* suffix, const A&... arguments) const {
    const at::NoGradGuard noGrad;  // only forward is part of a graph
    auto alive = engine();
    rpc::OutgoingCall outgoing = rpc::callWith<F>(*alive, module_.owner().rank, {}, module_, arguments...);
    outgoing.function = name_ + suffix;  // the owner may know only some of the names of the class
    return rpc::callAndWait<typename rpc::Traits<F>::Result>(*alive, std::move(outgoing));
  }

  RRef<Impl> module_;
  std::string name_;
};

namespace rpc {

template <class M>
struct Codec<RemoteModule<M>> {
  static void encode(Encoder& encoder, const RemoteModule<M>& value) {
    Codec<RRef<nn::Impl<M>>>::encode(encoder, value.moduleRef());
    Codec<std::string>::encode(encoder, value.name());
  }
  static RemoteModule<M> decode(Decoder& decoder) {
    auto module = Codec<RRef<nn::Impl<M>>>::decode(decoder);
    return RemoteModule<M>(std::move(module), Codec<std::string>::decode(decoder));
  }
  static std::string name() { return "RemoteModule<" + demangled(typeid(nn::Impl<M>).name()) + ">"; }
};

}  // namespace rpc

}  // namespace treadle

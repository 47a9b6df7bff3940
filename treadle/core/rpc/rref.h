#pragma once
// A reference to a value that lives on a worker, its owner. Copies of an RRef share one fork; the value goes when the
// last reference to it anywhere is gone. An RRef travels as an argument, in a result and inside containers and
// structs, between any workers. Any thread may call anything; after the worker has left its job everything throws
// StateError.

#include "treadle/core/rpc/typed_call.h"

namespace treadle {

// Methods that RRefs to some types have besides: specialised where the type is known.
template <class T>
class RRefMethods {};

template <class T>
class RRef : public RRefMethods<T> {
 public:
  using Value = rpc::Stored<T>;

  RRef() = default;  // refers to nothing
  explicit RRef(rpc::HandlePtr handle) : handle_(std::move(handle)) {}

  bool valid() const { return handle_ != nullptr; }
  WorkerInfo owner() const { return engine()->membership().info(handle_->entry().owner); }
  bool isOwner() const { return handle().local(); }
  // Whether the owner is known to have the value.
  bool confirmed() const { return handle().references()->confirmed(handle_); }

  // Returns when the owner has made the value; throws what making it threw.
  void waitUntilMade(std::optional<Duration> limit = {}) const;
  // A copy of the value. Throws what making it threw. The default limit is the worker's rpcTimeout.
  T toHere(std::optional<Duration> limit = {}) const { return fetch(limit, true).wait(); }
  Future<T> toHereAsync() const { return fetch({}, false); }

  // The value itself, at its owner alone; waits until it is made.
  Value& local() const {
    if (!isOwner())
      raise(failedPrecondition("local() works at the owner only; this reference is owned by " +
                               link::describe(owner())));
    return *static_cast<Value*>(owned().value.get());
  }

  // Calls member function M of the value, at the owner.
  template <auto M, class... A>
  typename rpc::Traits<M>::Result call(const A&... arguments) const {
    return startMember<M>(true, arguments...).wait();
  }
  template <auto M, class... A>
  Future<typename rpc::Traits<M>::Result> async(const A&... arguments) const {
    return startMember<M>(false, arguments...);
  }
  template <auto M, class... A>
  RRef<typename rpc::Traits<M>::Result> remote(const A&... arguments) const {
    auto alive = engine();
    return RRef<typename rpc::Traits<M>::Result>(alive->sendForReference(member<M>(*alive, arguments...)));
  }

  const rpc::HandlePtr& share() const { return handle_; }

 private:
  const rpc::RefHandle& handle() const {
    if (!handle_) raise(failedPrecondition("this RRef refers to nothing"));
    return *handle_;
  }
  std::shared_ptr<rpc::Engine> engine() const {
    auto alive = handle().references()->engine();
    if (!alive) raise(failedPrecondition("this RRef belongs to a worker that has left its job"));
    return alive;
  }

  template <auto M, class... A>
  rpc::OutgoingCall member(rpc::Engine& engine, const A&... arguments) const {
    static_assert(std::is_same_v<typename rpc::Traits<M>::Target, T>,
                  "M must be a member function of the type that the RRef refers to, not of a base class");
    rpc::OutgoingCall call = rpc::callWith<M>(engine, handle().entry().owner, {}, arguments...);
    call.target = handle_;
    return call;
  }
  template <auto M, class... A>
  Future<typename rpc::Traits<M>::Result> startMember(bool callerWaits, const A&... arguments) const {
    auto alive = engine();
    throwIfError(handle().references()->failureOf(handle_));
    rpc::OutgoingCall call = member<M>(*alive, arguments...);
    call.callerWaits = callerWaits;
    return rpc::startCall<typename rpc::Traits<M>::Result>(*alive, std::move(call));
  }

  // A call that the owner answers when it has the value.
  rpc::OutgoingCall fetchCall(const char* what, std::optional<Duration> limit, bool callerWaits) const;
  Future<T> fetch(std::optional<Duration> limit, bool callerWaits) const;
  rpc::OwnedValue owned() const;

  rpc::HandlePtr handle_;
};

namespace rpc {

template <class T>
struct Codec<RRef<T>> {
  static void encode(Encoder& encoder, const RRef<T>& value) {
    if (!value.valid()) raise(invalidArgument("an RRef that refers to nothing cannot be sent"));
    encoder.writer().number(encoder.addReference(value.share()));
  }
  static RRef<T> decode(Decoder& decoder) { return RRef<T>(decoder.reference()); }
  static std::string name() { return "RRef<" + nameOf<T>() + ">"; }
};

// Waits for a value of this worker, which may still be on its way.
OwnedValue waitForOwned(Engine& engine, const RefId& ref, const std::type_info& type);

}  // namespace rpc

template <class T>
rpc::OwnedValue RRef<T>::owned() const {
  return rpc::waitForOwned(*engine(), handle().entry().ref, typeid(Value));
}

template <class T>
rpc::OutgoingCall RRef<T>::fetchCall(const char* what, std::optional<Duration> limit, bool callerWaits) const {
  throwIfError(handle().references()->failureOf(handle_));
  rpc::OutgoingCall call;
  call.rank = handle().entry().owner;
  call.function = what;
  call.fetch = true;
  call.target = handle_;
  call.callerWaits = callerWaits;
  call.options.timeout = limit;
  return call;
}

template <class T>
void RRef<T>::waitUntilMade(std::optional<Duration> limit) const {
  if (isOwner()) return (void)owned();
  rpc::startCall<void>(*engine(), fetchCall(rpc::kAwaitValue, limit, true)).wait();
}

template <class T>
Future<T> RRef<T>::fetch(std::optional<Duration> limit, bool callerWaits) const {
  static_assert(rpc::Travels<Value>, "values of this type do not travel; call their functions at the owner instead");
  auto alive = engine();
  if (isOwner()) {
    Promise<T> here(&alive->executor());
    here.set(*static_cast<Value*>(owned().value.get()));
    return here.future();
  }
  rpc::OutgoingCall call = fetchCall(rpc::kFetchValue, limit, callerWaits);
  return rpc::startCall<T>(*alive, std::move(call), [](rpc::Decoder& decoder) {
    std::string type = rpc::Codec<std::string>::decode(decoder);
    if (std::string mine = demangled(typeid(Value).name()); type != mine)
      raise(failedPrecondition("the reference is to a " + type + ", not to a " + mine));
    return rpc::Codec<Value>::decode(decoder);
  });
}

}  // namespace treadle

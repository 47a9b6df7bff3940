#pragma once
// A reference to a value that lives on a worker, its owner. Copies of an RRef share one fork. The value is destroyed
// when the last reference to it on any worker is gone. An RRef travels as an argument, in a result and inside
// containers and structs, between any workers. Any thread may call any function. After the worker has left its job,
// every function except valid, isOwner and confirmedByOwner throws StateError.
//
// A reference may be used and passed on before the value is made, and when making it failed. A function that needs the
// value waits for it, up to its time limit, and throws what making it threw. PeerLostError when the owner is lost: the
// value is gone.

#include "treadle/core/rpc/typed_call.h"

namespace treadle {

namespace rpc {

// The engine of the worker that `handle` belongs to, for the duration of a call: the worker may leave meanwhile.
// StateError when there is none. `what` is the user's name for the reference: "RRef".
EngineUse engineOf(const HandlePtr& handle, std::string_view what);
// For functions that need the value: also throws what making it threw, if that is known here.
EngineUse engineForValue(const HandlePtr& handle, std::string_view what);

// The member function that runs when a T is called.
template <class T>
constexpr auto callableOf() {
  if constexpr (requires { &T::operator(); }) {
    return &T::operator();
  } else {
    return &T::forward;
  }
}

}  // namespace rpc

// Additional methods of RRefs to some types: specialised where the type is known.
template <class T>
class RRefMethods {};

template <class T>
class RRef : public RRefMethods<T> {
 public:
  using Value = rpc::Stored<T>;

  RRef() = default;  // refers to nothing
  explicit RRef(rpc::HandlePtr handle) : handle_(std::move(handle)) {}

  bool valid() const { return handle_ != nullptr; }
  WorkerInfo owner() const { return engine()->membership().info(handle().entry().owner); }
  bool isOwner() const { return handle().local(); }
  // Whether the owner is known to have made the value. Sends nothing: on other workers it becomes true when the answer
  // or the notice has arrived.
  bool confirmedByOwner() const { return handle().references()->confirmed(handle_); }

  // Returns when the owner has made the value; throws what making it threw. TimeoutError after the limit, by default
  // the worker's rpcTimeout.
  void waitUntilReady(std::optional<Duration> limit = {}) const;
  // A copy of the value; throws what making it threw. The default limit is the worker's rpcTimeout.
  T toHere(std::optional<Duration> limit = {}) const;
  Future<T> toHereAsync() const;

  // The value itself, on its owner only (StateError elsewhere). Waits until it is made, at most rpcTimeout. All local
  // users share the value and handlers run concurrently, so a value that changes must guard itself. It lives as long as
  // a reference does.
  Value& localValue() const {
    if (!isOwner())
      raise(failedPrecondition("localValue() works at the owner only; this reference is owned by " +
                               link::describe(owner())));
    return *static_cast<Value*>(owned().value.get());
  }

  // Calls member function M of the value on its owner, as Worker::call, async and remote do. The value lives until the
  // call is answered, even when this was its last reference.
  template <auto M, class... A>
  typename rpc::Traits<M>::Result call(A&&... arguments) const {
    auto alive = engineForValue();
    return rpc::callAndWait<typename rpc::Traits<M>::Result>(*alive, member<M>(*alive, std::forward<A>(arguments)...));
  }
  template <auto M, class... A>
  Future<typename rpc::Traits<M>::Result> async(A&&... arguments) const {
    auto alive = engineForValue();
    return rpc::startCall<typename rpc::Traits<M>::Result>(*alive, member<M>(*alive, std::forward<A>(arguments)...));
  }
  template <auto M, class... A>
  RRef<typename rpc::Traits<M>::Result> remote(A&&... arguments) const {
    auto alive = engine();
    return RRef<typename rpc::Traits<M>::Result>(
        alive->sendForReference(member<M>(*alive, std::forward<A>(arguments)...)));
  }

  // Calls the value on its owner: its operator(), or forward for a module. The result stays there.
  template <class... A>
  auto operator()(A&&... arguments) const {
    return remote<rpc::callableOf<T>()>(std::forward<A>(arguments)...);
  }

  // For the rooms above.
  friend const rpc::HandlePtr& handleOf(const RRef& reference) { return reference.handle_; }

 private:
  const rpc::RefHandle& handle() const {
    if (!handle_) raise(failedPrecondition("this RRef refers to nothing"));
    return *handle_;
  }
  rpc::EngineUse engine() const { return rpc::engineOf(handle_, "RRef"); }
  rpc::EngineUse engineForValue() const { return rpc::engineForValue(handle_, "RRef"); }

  template <auto M, class... A>
  rpc::OutgoingCall member(rpc::Engine& engine, A&&... arguments) const {
    static_assert(std::is_same_v<typename rpc::Traits<M>::Target, T>,
                  "M must be a member function of the type that the RRef refers to, not of a base class");
    rpc::OutgoingCall call = rpc::callWith<M>(engine, handle().entry().owner, {}, std::forward<A>(arguments)...);
    call.target = handle_;
    return call;
  }

  // A call that the owner answers when it has the value.
  rpc::OutgoingCall fetchCall(const char* what, std::optional<Duration> limit) const;
  Future<T> fetchHere(rpc::Engine& engine, std::optional<Duration> limit) const;  // at the owner
  rpc::OwnedValue owned(std::optional<Duration> limit = {}) const;

  rpc::HandlePtr handle_;
};

namespace rpc {

template <class T>
struct Codec<RRef<T>> {
  static void encode(Encoder& encoder, const RRef<T>& value) {
    if (!value.valid()) raise(invalidArgument("an RRef that refers to nothing cannot be sent"));
    encoder.writer().number(encoder.addReference(handleOf(value)));
  }
  static RRef<T> decode(Decoder& decoder) { return RRef<T>(decoder.reference()); }
  static std::string name() { return "RRef<" + nameOf<T>() + ">"; }
};

// Waits for a value of this worker, which may not be made yet; at most `limit`, by default the rpcTimeout.
OwnedValue waitForOwned(Engine& engine, const RefId& ref, const std::type_info& type, std::optional<Duration> limit);
// Applies the same limit to `waiting`, the future of wait number `number` for `ref` (References::whenReady).
void boundWait(Engine& engine, const RefId& ref, uint64_t number, std::optional<Duration> limit,
               io::FutureCore& waiting);

}  // namespace rpc

template <class T>
rpc::OwnedValue RRef<T>::owned(std::optional<Duration> limit) const {
  return rpc::waitForOwned(*engineForValue(), handle().entry().ref, typeid(Value), limit);
}

template <class T>
rpc::OutgoingCall RRef<T>::fetchCall(const char* what, std::optional<Duration> limit) const {
  return rpc::fetchCall(handle().entry().owner, what, handle_, {.timeout = limit});
}

template <class T>
void RRef<T>::waitUntilReady(std::optional<Duration> limit) const {
  if (isOwner()) return (void)owned(limit);
  rpc::callAndWait<void>(*engineForValue(), fetchCall(rpc::kAwaitValue, limit));
}

template <class T>
Future<T> RRef<T>::fetchHere(rpc::Engine& engine, std::optional<Duration> limit) const {
  static_assert(rpc::Travels<Value>, "values of this type do not travel; call their functions at the owner instead");
  Promise<T> promise(&engine.executor());
  Future<T> copy = promise.future();
  auto copyOf = [promise = std::move(promise)](Result<rpc::OwnedValue> value) mutable {
    if (!value.ok()) return promise.fail(std::move(value).status());
    if (Status fits = rpc::typeFits(*value, typeid(Value)); !fits.ok()) return promise.fail(std::move(fits));
    try {
      promise.set(*static_cast<Value*>(value->value.get()));
    } catch (...) {
      promise.fail(statusOfCurrentException("the copy of a value"));
    }
  };
  const rpc::RefId ref = handle().entry().ref;
  uint64_t number = engine.references().whenReady(ref, std::move(copyOf));
  if (number != 0) rpc::boundWait(engine, ref, number, limit, *sharedStateOf(copy));
  return copy;
}

template <class T>
T RRef<T>::toHere(std::optional<Duration> limit) const {
  auto alive = engineForValue();
  if (!isOwner()) return rpc::callAndWait<T>(*alive, fetchCall(rpc::kFetchValue, limit), &rpc::decodeFetched<Value>);
  owned(limit);
  return fetchHere(*alive, limit).wait();
}

template <class T>
Future<T> RRef<T>::toHereAsync() const {
  auto alive = engineForValue();
  if (isOwner()) return fetchHere(*alive, {});
  return rpc::startCall<T>(*alive, fetchCall(rpc::kFetchValue, {}), &rpc::decodeFetched<Value>);
}

}  // namespace treadle

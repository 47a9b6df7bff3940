#pragma once
// The functions that call other workers. Worker has them with its default options, CallProxy (worker.with(...)) with
// the given options. Any thread may call. Calls of one thread to one worker arrive in order. Their handlers begin in
// that order, several at a time; a call on an object that is still being made begins later. Only where tensors go
// through sockets, later calls may overtake a call with large tensors. A worker may call itself; the call takes the
// same path.
//
// Limits per message: 64 MiB of values, 16 GiB of tensors, 65,535 tensors (JoinOptions::messageLimits); names: 1,024
// bytes. A function runs at most once per call. Only a function declared idempotent is retried, and only when the call
// asks for it (CallOptions::attempts).
//
// A thread that polls or reads for others never waits. Such a thread decodes answers: it runs the codecs of results,
// and it destroys a result whose Future is gone when the answer arrives (future.h). There `call`, `callNamed`,
// RRef::call, RRef::toHere and RRef::waitUntilReady throw ResourceError before anything is sent. `async` and `remote`
// work as long as there is room for the request.

#include <string>
#include <string_view>

#include "treadle/core/rpc/attempts.h"
#include "treadle/core/rpc/rref.h"

namespace treadle {

// The target of a call: a worker's info, name or rank.
class WorkerRef {
 public:
  WorkerRef(const WorkerInfo& worker) : rank_(worker.rank) {}             // NOLINT: implicit on purpose
  WorkerRef(int rank) : rank_(rank) {}                                    // NOLINT
  WorkerRef(std::string name) : byName_(true), name_(std::move(name)) {}  // NOLINT
  WorkerRef(std::string_view name) : byName_(true), name_(name) {}        // NOLINT
  WorkerRef(const char* name) : byName_(true), name_(name) {}             // NOLINT

  // NotFound naming the existing workers, or their number.
  int rank(const cluster::Membership& membership) const {
    if (byName_) return valueOrThrow(membership.rankOf(name_));
    throwIfError(membership.checkRank(rank_));
    return rank_;
  }
  const std::string* name() const { return byName_ ? &name_ : nullptr; }  // null when given by rank or info

 private:
  // Not a std::variant: g++ 12 at -O2 warns about its string in users' programs (like GCC bug 105562).
  bool byName_ = false;
  int rank_ = -1;
  std::string name_;
};

// `Self` has `rpc::Engine& engine() const` and `CallOptions callOptions() const`.
template <class Self>
class CallMethods {
 public:
  // Calls F there and waits for its result. Throws RemoteError when F threw, TimeoutError, PeerLostError, NotFoundError
  // (no such worker, or no such function there), StateError (F has no name here, or another signature there),
  // ResourceError (too large, too many unanswered requests, too many handlers wait, or this thread polls or reads),
  // DataError (a malformed answer), ArgumentError (an argument that cannot be sent). After TimeoutError and
  // PeerLostError it is unknown whether F ran. A treadle::Error that F threw keeps its class.
  template <auto F, class... A>
  typename rpc::Traits<F>::Result call(const WorkerRef& to, A&&... arguments) const {
    CallOptions each = options();
    if (each.attempts == 1) return callOnce<F>(each, to, std::forward<A>(arguments)...);
    rpc::Attempts attempts(engine(), rpc::entryOfFunction<F>(engine()), each, to.name());
    if constexpr (rpc::kTakes<typename rpc::Traits<F>::Values, const A&...>) {
      each.attempts = 1;
      return callAgain<F>(attempts, each, to, arguments...);
    } else {
      raise(invalidArgument("CallOptions::attempts is for arguments that can be given more than once"));
    }
  }
  // The same without waiting for the answer; the future's `wait` throws what `call` would. Arguments are captured when
  // this returns. So it may block until there is room in the send queue (JoinOptions::maxQueuedBytes) and until enough
  // earlier requests to that worker are answered (JoinOptions::maxInFlightBytes), at most for the call's time limit
  // (with kNoTimeout, for answers, at most for rpcTimeout).
  template <auto F, class... A>
  Future<typename rpc::Traits<F>::Result> async(const WorkerRef& to, A&&... arguments) const {
    return rpc::startCall<typename rpc::Traits<F>::Result>(engine(),
                                                           callOf<F>(options(), to, std::forward<A>(arguments)...));
  }
  // The result stays there. Returns the reference when the request has left (it may block like `async`); the reference
  // may be used and passed on at once. Functions that need the value (RRef::toHere, waitUntilReady, ...) throw the
  // failure, not this one. The result's type need not travel.
  template <auto F, class... A>
  RRef<typename rpc::Traits<F>::Result> remote(const WorkerRef& to, A&&... arguments) const {
    return RRef<typename rpc::Traits<F>::Result>(
        engine().sendForReference(callOf<F>(options(), to, std::forward<A>(arguments)...)));
  }

  // Calls by name. The signature follows from R and the arguments' own types, which must be the function's (a string
  // literal is a std::string).
  template <class R, class... A>
  R callNamed(const WorkerRef& to, std::string_view function, A&&... arguments) const {
    return rpc::callAndWait<R>(engine(), named<R>(to, function, std::forward<A>(arguments)...));
  }
  template <class R, class... A>
  Future<R> asyncNamed(const WorkerRef& to, std::string_view function, A&&... arguments) const {
    return rpc::startCall<R>(engine(), named<R>(to, function, std::forward<A>(arguments)...));
  }
  template <class R, class... A>
  RRef<R> remoteNamed(const WorkerRef& to, std::string_view function, A&&... arguments) const {
    return RRef<R>(engine().sendForReference(named<R>(to, function, std::forward<A>(arguments)...)));
  }

  // Constructs a T there; the callee must offer it (Functions::addType). Numeric arguments may have any width: they
  // travel as int64 or double, and a number that does not fit the parameter is an ArgumentError.
  template <class T, class... A>
  RRef<T> make(const WorkerRef& to, const A&... arguments) const {
    const Functions::Entry& entry =
        rpc::entryOf(engine(), &rpc::typeKey<T>, [] { return demangled(typeid(T).name()); });
    return RRef<T>(engine().sendForReference(rpc::makerCall<T>(entry, rankOf(to), options(), arguments...)));
  }

 private:
  template <auto F, class... A>
  typename rpc::Traits<F>::Result callAgain(rpc::Attempts& attempts, const CallOptions& each, const WorkerRef& to,
                                            const A&... arguments) const {
    for (;;) {
      const int callee = rankOf(to);
      try {
        return callOnce<F>(each, callee, arguments...);
      } catch (const Error& error) {
        attempts.afterFailure(error, callee);
      }
    }
  }
  rpc::Engine& engine() const { return static_cast<const Self*>(this)->engine(); }
  CallOptions options() const { return static_cast<const Self*>(this)->callOptions(); }
  int rankOf(const WorkerRef& to) const { return to.rank(engine().membership()); }

  template <auto F, class... A>
  rpc::OutgoingCall callOf(const CallOptions& options, const WorkerRef& to, A&&... arguments) const {
    static_assert(!rpc::Traits<F>::isMember, "a member function is called through an RRef to its object");
    return rpc::callWith<F>(engine(), rankOf(to), options, std::forward<A>(arguments)...);
  }
  template <auto F, class... A>
  typename rpc::Traits<F>::Result callOnce(const CallOptions& options, const WorkerRef& to, A&&... arguments) const {
    return rpc::callAndWait<typename rpc::Traits<F>::Result>(engine(),
                                                             callOf<F>(options, to, std::forward<A>(arguments)...));
  }
  template <class R, class... A>
  rpc::OutgoingCall named(const WorkerRef& to, std::string_view function, A&&... arguments) const {
    const std::string signature = rpc::nameOf<R>() + " (" + rpc::namesOf<rpc::Sent<A>...>() + ")";
    return rpc::outgoingCall(rankOf(to), function, signature, options(), [&arguments...](rpc::Encoder& encoder) {
      (rpc::encodeAs<rpc::Sent<A>>(encoder, std::forward<A>(arguments)), ...);
    });
  }
};

}  // namespace treadle

#pragma once
// The ways to call a function of another worker. Worker has them with its own defaults, Caller (worker.with(...)) with
// the options given. Any thread may call; calls of one thread to one worker arrive in their order, and their handlers
// begin in it (those for an object that is still being made, later), several at a time. Only where tensors go through
// sockets may a call with large ones be overtaken by the calls after it. A worker may call itself; it takes the same
// way.
//
// Limits: values of 64 MiB and tensors of 16 GiB and 65,535 in number per message (JoinOptions::messageLimits), names
// of 1,024 bytes. A function runs at most once per call; only what is declared idempotent is tried again, and only
// where the call says so (CallOptions::attempts).
//
// A thread that polls or reads what others wait for never waits. Such a thread decodes answers, so it runs the codecs
// of results, and it destroys a result whose Future is gone when the answer arrives (future.h). `call`, `callNamed`,
// RRef::call, RRef::toHere and RRef::waitUntilMade throw ResourceError there, before anything is sent. `async` and
// `remote` work as long as there is room for the request.

#include <string>
#include <string_view>

#include "treadle/core/rpc/attempts.h"
#include "treadle/core/rpc/rref.h"

namespace treadle {

// Whom a call is for: a worker's info, name or rank.
class To {
 public:
  To(const WorkerInfo& worker) : rank_(worker.rank) {}             // NOLINT: implicit on purpose
  To(int rank) : rank_(rank) {}                                    // NOLINT
  To(std::string name) : byName_(true), name_(std::move(name)) {}  // NOLINT
  To(std::string_view name) : byName_(true), name_(name) {}        // NOLINT
  To(const char* name) : byName_(true), name_(name) {}             // NOLINT

  // NotFound naming the workers, or the number of workers, that there are.
  int rank(const cluster::Membership& membership) const {
    if (byName_) return valueOrThrow(membership.rankOf(name_));
    throwIfError(membership.checkRank(rank_));
    return rank_;
  }
  const std::string* name() const { return byName_ ? &name_ : nullptr; }  // null when it is not known by that

 private:
  // No variant of the two: g++ 12 at -O2 warns of its string in users' programs (like GCC bug 105562).
  bool byName_ = false;
  int rank_ = -1;
  std::string name_;
};

// `Self` has `rpc::Engine& engine() const` and `CallOptions callOptions() const`.
template <class Self>
class CallMethods {
 public:
  // Calls F there and waits for its result. Throws RemoteError for what F threw, TimeoutError, PeerLostError,
  // NotFoundError (no such worker or function there), StateError (F has no name here, or another signature there),
  // ResourceError (too large, too much unanswered, too many handlers wait, or this thread polls or reads), DataError
  // (an answer that is none). After TimeoutError and PeerLostError it is not known whether F ran. A treadle::Error that
  // F threw comes back as itself.
  template <auto F, class... A>
  typename rpc::Traits<F>::Result call(const To& to, A&&... arguments) const {
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
  // The same without waiting for the answer; `wait` throws what `call` would. Arguments are captured when it
  // returns, so it may wait until there is room in the send queue (JoinOptions::sendLimitBytes) and until enough of
  // what that worker was asked before is answered (JoinOptions::unansweredLimitBytes), at most for the call's time
  // limit.
  template <auto F, class... A>
  Future<typename rpc::Traits<F>::Result> async(const To& to, A&&... arguments) const {
    return rpc::startCall<typename rpc::Traits<F>::Result>(engine(),
                                                           callOf<F>(options(), to, std::forward<A>(arguments)...));
  }
  // The result stays there; the reference is there at once (when the request has left, as `async` says) and may be used
  // and passed on at once. Failures are told by what needs the value (RRef::toHere, waitUntilMade, ...), not here. The
  // result's type need not travel.
  template <auto F, class... A>
  RRef<typename rpc::Traits<F>::Result> remote(const To& to, A&&... arguments) const {
    return RRef<typename rpc::Traits<F>::Result>(
        engine().sendForReference(callOf<F>(options(), to, std::forward<A>(arguments)...)));
  }

  // By name alone; the signature follows from R and the arguments' own types, which must be the function's (a literal
  // text is a std::string).
  template <class R, class... A>
  R callNamed(const To& to, std::string_view function, A&&... arguments) const {
    return rpc::callAndWait<R>(engine(), named<R>(to, function, std::forward<A>(arguments)...));
  }
  template <class R, class... A>
  Future<R> asyncNamed(const To& to, std::string_view function, A&&... arguments) const {
    return rpc::startCall<R>(engine(), named<R>(to, function, std::forward<A>(arguments)...));
  }
  template <class R, class... A>
  RRef<R> remoteNamed(const To& to, std::string_view function, A&&... arguments) const {
    return RRef<R>(engine().sendForReference(named<R>(to, function, std::forward<A>(arguments)...)));
  }

  // Constructs a T there, which the callee offers by Functions::addType. Numbers of any width may be given for
  // numbers: they travel as int64 or double, and one that does not fit the parameter is an ArgumentError.
  template <class T, class... A>
  RRef<T> make(const To& to, const A&... arguments) const {
    const Functions::Entry& entry =
        rpc::entryOf(engine(), &rpc::typeKey<T>, [] { return demangled(typeid(T).name()); });
    return RRef<T>(engine().sendForReference(rpc::makerCall<T>(entry, rankOf(to), options(), arguments...)));
  }

 private:
  template <auto F, class... A>
  typename rpc::Traits<F>::Result callAgain(rpc::Attempts& attempts, const CallOptions& each, const To& to,
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
  int rankOf(const To& to) const { return to.rank(engine().membership()); }

  template <auto F, class... A>
  rpc::OutgoingCall callOf(const CallOptions& options, const To& to, A&&... arguments) const {
    static_assert(!rpc::Traits<F>::isMember, "a member function is called through an RRef to its object");
    return rpc::callWith<F>(engine(), rankOf(to), options, std::forward<A>(arguments)...);
  }
  template <auto F, class... A>
  typename rpc::Traits<F>::Result callOnce(const CallOptions& options, const To& to, A&&... arguments) const {
    return rpc::callAndWait<typename rpc::Traits<F>::Result>(engine(),
                                                             callOf<F>(options, to, std::forward<A>(arguments)...));
  }
  template <class R, class... A>
  rpc::OutgoingCall named(const To& to, std::string_view function, A&&... arguments) const {
    const std::string signature = rpc::nameOf<R>() + " (" + rpc::namesOf<rpc::Sent<A>...>() + ")";
    return rpc::outgoingCall(rankOf(to), function, signature, options(), [&arguments...](rpc::Encoder& encoder) {
      (rpc::encodeAs<rpc::Sent<A>>(encoder, std::forward<A>(arguments)), ...);
    });
  }
};

}  // namespace treadle

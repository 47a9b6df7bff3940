#pragma once
// A value that will be ready later, or the reason why there is none. Every future ends: with its call's answer, at its
// deadline, when the peer is lost, or when its worker ends. A thread that waits for a call's answer reads it from the
// socket itself.
//
// A Future is a handle; copies share one state. Any thread may call any function. While `wait` blocks inside a handler,
// another thread takes over the polling.
//
// The last copy destroys the value. If no copy is left when the answer of a call arrives, the thread that reads the
// answer destroys the value. That thread must not wait: in the value's destructor, `wait` and blocking calls throw
// ResourceError, and nothing is sent. A destructor that makes calls uses `async`; code that must wait belongs in a
// handler.

#include <atomic>
#include <concepts>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "treadle/core/base/error.h"
#include "treadle/core/base/mutex.h"
#include "treadle/core/base/unique_function.h"
#include "treadle/core/io/executor.h"

namespace treadle {

template <class T>
class Future;

namespace io {

// Stands for void where a value is needed.
struct Unit {
  bool operator==(const Unit&) const = default;
};

template <class T>
using Stored = std::conditional_t<std::is_void_v<T>, Unit, T>;

// Whether a T can really be copied: containers claim to be copyable whatever their elements are.
template <class T>
inline constexpr bool kCopyable = std::copy_constructible<T>;  // false for void
template <class T>
inline constexpr bool kCopyable<std::vector<T>> = kCopyable<T>;
template <class T>
inline constexpr bool kCopyable<std::optional<T>> = kCopyable<T>;
template <class K, class T>
inline constexpr bool kCopyable<std::map<K, T>> = kCopyable<K> && kCopyable<T>;
template <class A, class B>
inline constexpr bool kCopyable<std::pair<A, B>> = kCopyable<A> && kCopyable<B>;
template <class... T>
inline constexpr bool kCopyable<std::tuple<T...>> = (kCopyable<T> && ...);

// The result of `f` for a future's value, which `f` takes by reference; a Future<void> passes no argument.
template <class F, class T>
struct ContinuedBy : std::invoke_result<F&, T&> {};
template <class F>
struct ContinuedBy<F, void> : std::invoke_result<F&> {};
template <class F, class T>
using Continued = typename ContinuedBy<F, T>::type;

// Calls `f` with the value, or without arguments for Unit. Returns Unit for a void result.
template <class F, class V>
auto invokeForValue(F& f, V& value) {
  auto call = [&]() -> decltype(auto) {
    if constexpr (std::same_as<V, Unit>) {
      return f();
    } else {
      return f(value);
    }
  };
  if constexpr (std::is_void_v<decltype(call())>) {
    call();
    return Unit{};
  } else {
    return call();
  }
}

// The part of a future's state that does not depend on the value's type. It becomes ready once and stays ready.
// Completing takes one lock and wakes up waiting threads by a condition variable; a thread that assists is woken up by
// its socket.
class FutureCore {
 public:
  virtual ~FutureCore() = default;

  bool ready() const { return ready_.load(std::memory_order_acquire); }
  // False when the deadline passed first. ResourceExhausted when too many handlers wait, or this thread polls or reads.
  Result<bool> waitUntil(TimePoint deadline);
  // Runs `continuation` when ready: at once if it already is, else on the completing thread; it must not wait. A deeply
  // nested continuation is postponed until the outer ones have run. Returns its number for `forget`.
  uint64_t onReady(UniqueFunction<void()> continuation);
  // Drops a continuation that has not begun.
  void forget(uint64_t continuation);
  // Fails `future` and the futures that its hook cancels, unless they are ready. None of them becomes ready before its
  // operation knows of the cancellation: the memory of a collective is free when its future is ready. When a hook calls
  // this, it takes effect after that hook has returned.
  static void cancel(const std::shared_ptr<FutureCore>& future);

  // The failure of a future whose promise was dropped without a value.
  static Status whenDropped();

  // Set before the state is shared. `assist(deadline)` may read from a socket until this is ready. `cancelHook` may be
  // called more than once, and by several threads at the same time.
  UniqueFunction<void(TimePoint)> assist;
  UniqueFunction<void()> cancelHook;
  // Another thread may still use the memory when the hook returns; it completes this future later, so `cancel` does
  // not.
  bool endsByItself = false;
  // Runs the continuations of users; when empty, they run where the state is completed.
  ContinueOn executor;

 protected:
  bool claim() { return !claimed_.exchange(true); }
  void markReady();
  virtual void fail(Status why) = 0;

 private:
  static void failWhenFree(std::vector<std::shared_ptr<FutureCore>> all);

  std::atomic<bool> ready_ = false, claimed_ = false;
  Mutex mutex_;
  CondVar condition_;
  struct Continuation {
    uint64_t number;
    UniqueFunction<void()> run;
  };
  uint64_t lastNumber_ TREADLE_GUARDED_BY(mutex_) = 0;
  std::vector<Continuation> continuations_ TREADLE_GUARDED_BY(mutex_);
};

template <class T>
class FutureState final : public FutureCore {
 public:
  // The first completion counts; later ones return false.
  bool complete(Result<T> result) {
    if (!claim()) return false;
    store(result);
    markReady();
    return true;
  }
  // Call it only when ready.
  Result<T>& result() { return *result_; }

 private:
  void fail(Status why) override { complete(std::move(why)); }
  // A value that could not even be moved becomes a failure, so that waiting threads still end.
  void store(Result<T>& result) {
    try {
      result_.emplace(std::move(result));
    } catch (...) {
      result_.emplace(statusOfCurrentException("moving a value into its future"));
    }
  }

  std::optional<Result<T>> result_;
};

}  // namespace io

// The writing end of a future that is made by hand. A handler that answers later returns the future and keeps the
// promise. A promise that is dropped without a value completes the future with CancelledError, so no waiting thread is
// forgotten. Only the first `set` or `fail` counts. A thread that sees the value or the failure that it gave may
// drop the promise, also before it has returned on another thread.
template <class T>
class Promise {
 public:
  Promise() : state_(std::make_shared<State>()) {}
  // `executor` runs the future's continuations; when null, they run on the thread that sets the value.
  explicit Promise(io::ContinueOn executor) : Promise() { state_->executor = std::move(executor); }
  Promise(Promise&&) noexcept = default;
  Promise& operator=(Promise&&) = delete;
  ~Promise() {
    if (state_ && !state_->ready()) state_->complete(State::whenDropped());
  }

  Future<T> future() const { return Future<T>(state_); }
  void set(io::Stored<T> value = {}) { kept()->complete(std::move(value)); }
  void fail(Status why) { kept()->complete(std::move(why)); }

 private:
  using State = io::FutureState<io::Stored<T>>;

  // A thread that wakes up may drop the promise, which may have the last reference but this.
  std::shared_ptr<State> kept() const { return state_; }

  std::shared_ptr<State> state_;
};

template <class T>
class Future {
 public:
  using State = io::FutureState<io::Stored<T>>;

  Future() = default;  // holds nothing; every function except `valid` throws StateError
  explicit Future(std::shared_ptr<State> state) : state_(std::move(state)) {}

  bool valid() const { return state_ != nullptr; }
  bool ready() const { return state().ready(); }

  // The value, or the exception for the failure; for a call, the exceptions of Worker::call. Bounded by the call's own
  // time limit and its peer's life. The first wait moves out a value that cannot be copied. ResourceError inside a
  // handler when too many handlers wait already (JoinOptions::maxBlockedHandlers), and on a thread that polls or reads;
  // the call itself goes on.
  T wait() { return waitUntil(kNever); }
  // TimeoutError when `limit` passes first; the call itself goes on.
  T wait(Duration limit) { return waitUntil(deadlineAfter(limit)); }

  // Fails the future with CancelledError unless it is ready, and cancels its operation: at the callee, queued work is
  // dropped, a Task is cancelled at its next await, and a plain function that already runs can see
  // CallContext::cancelled(). A future made by `then` or `whenAll` cancels the futures that it was made from. On a
  // thread that polls or reads, which never waits, a collective and futures made from it may become ready only after
  // this has returned.
  void cancel() {
    state();
    io::FutureCore::cancel(state_);
  }

  // A future of `f(value)`, which runs on the worker's pool when this future is ready; `f` takes the value by
  // reference. A failure passes through without `f`, and an exception of `f` becomes the new future's failure. If the
  // worker ends before `f` ran, the new future ends with CancelledError.
  template <class F>
  auto then(F f);

  // For the rooms above.
  friend const std::shared_ptr<State>& sharedStateOf(const Future& future) { return future.state_; }

 private:
  State& state() const {
    if (!state_) raise(failedPrecondition("this Future holds nothing"));
    return *state_;
  }
  T waitUntil(TimePoint deadline) {
    if (!valueOrThrow(state().waitUntil(deadline))) raise(deadlineExceeded("the future was not ready in time"));
    Result<io::Stored<T>>& result = state_->result();
    if (!result.ok()) raise(result.status());
    if constexpr (!std::is_void_v<T>) {
      if constexpr (io::kCopyable<T>) {
        return *result;
      } else {
        return std::move(*result);
      }
    }
  }

  std::shared_ptr<State> state_;
};

template <class T>
template <class F>
auto Future<T>::then(F f) {
  using R = io::Continued<F, T>;
  // The continuation owns the promise: if the pool ends before it runs, the new future still ends.
  Promise<R> promise(state().executor);
  Future<R> future = promise.future();
  sharedStateOf(future)->cancelHook = [weak = std::weak_ptr(state_)] {
    if (auto alive = weak.lock()) Future(alive).cancel();
  };
  auto run = [from = state_, promise = std::move(promise), f = std::move(f)]() mutable {
    if (!from->result().ok()) return promise.fail(from->result().status());
    try {
      promise.set(io::invokeForValue(f, *from->result()));
    } catch (...) {
      promise.fail(statusOfCurrentException("a continuation"));
    }
  };
  auto shared = std::make_shared<decltype(run)>(std::move(run));
  state_->onReady([executor = state_->executor, shared] {
    if (!executor) return (*shared)();
    executor.post([shared] { (*shared)(); });
  });
  return future;
}

namespace io {

// The values of futures that are ready, or the failure of the first that failed.
template <class T, class R = std::conditional_t<std::is_void_v<T>, Unit, std::vector<Stored<T>>>>
Result<R> valuesOf(const std::vector<Future<T>>& futures) {
  R values{};
  for (const Future<T>& one : futures) {
    Result<Stored<T>>& result = sharedStateOf(one)->result();
    if (!result.ok()) return result.status();
    if constexpr (kCopyable<T>) {
      values.push_back(*result);
    } else if constexpr (!std::is_void_v<T>) {
      values.push_back(std::move(*result));  // whenAll takes values that cannot be copied
    }
  }
  return values;
}

}  // namespace io

// The values of all futures, in order; or the failure of the first in order that failed. Ready when all are ready, so
// that nothing is in flight any more when it reports a failure. Without futures: ready at once.
template <class T>
auto whenAll(std::vector<Future<T>> futures) {
  using R = std::conditional_t<std::is_void_v<T>, void, std::vector<io::Stored<T>>>;
  for (const Future<T>& one : futures)
    if (!one.valid()) raise(failedPrecondition("whenAll was given a Future that belongs to nothing"));
  auto all = std::make_shared<io::FutureState<io::Stored<R>>>();
  auto shared = std::make_shared<std::vector<Future<T>>>(std::move(futures));
  auto left = std::make_shared<std::atomic<size_t>>(shared->size() + 1);
  auto arrive = [all, shared, left] {
    if (left->fetch_sub(1) != 1) return;
    try {
      all->complete(io::valuesOf(*shared));
    } catch (...) {  // from copying a value
      all->complete(statusOfCurrentException("whenAll"));
    }
  };
  if (!shared->empty()) all->executor = sharedStateOf(shared->front())->executor;
  all->cancelHook = [weak = std::weak_ptr(shared)] {
    if (auto alive = weak.lock())
      for (Future<T>& one : *alive) one.cancel();
  };
  for (Future<T>& one : *shared) sharedStateOf(one)->onReady(arrive);
  arrive();
  return Future<R>(all);
}

// The index of the first future that becomes ready, with a value or a failure. The others go on; a caller that no
// longer needs them cancels them. ArgumentError without futures.
template <class T>
Future<size_t> whenAny(const std::vector<Future<T>>& futures) {
  if (futures.empty()) raise(invalidArgument("whenAny was given no futures"));
  for (const Future<T>& one : futures)
    if (!one.valid()) raise(failedPrecondition("whenAny was given a Future that belongs to nothing"));
  auto any = std::make_shared<io::FutureState<size_t>>();
  any->executor = sharedStateOf(futures.front())->executor;
  // Leaves no continuation behind: a loop may call this many times with the same slow future.
  std::vector<std::pair<std::weak_ptr<io::FutureCore>, uint64_t>> asked;
  for (size_t i = 0; i < futures.size() && !any->ready(); ++i)
    asked.emplace_back(sharedStateOf(futures[i]), sharedStateOf(futures[i])->onReady([any, i] { any->complete(i); }));
  any->onReady([asked = std::move(asked)] {
    for (const auto& [future, number] : asked)
      if (auto alive = future.lock()) alive->forget(number);
  });
  return Future<size_t>(any);
}

// Blocks for whenAny. TimeoutError when `limit` passes first.
template <class T>
size_t waitAny(const std::vector<Future<T>>& futures, Duration limit = kNoTimeout) {
  return whenAny(futures).wait(limit);
}

}  // namespace treadle

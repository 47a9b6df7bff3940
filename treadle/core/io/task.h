#pragma once
// A function written as a C++20 coroutine: it holds no thread while it awaits. It may await Futures (calls, fetches,
// collectives, Worker::after) and other Tasks:
//
//   treadle::Task<int> sumOf(treadle::CallContext& call, std::string first, std::string second) {
//     auto one = call.worker().async<&f>(first), two = call.worker().async<&f>(second);
//     co_return co_await one + co_await two;
//   }
//
// A task begins when something runs it: as a handler, by Worker::spawn, or when another task awaits it. It continues in
// the worker's pool, on any of its threads, one at a time. An await throws the failure of the future or task. A
// cancelled task (its caller gave up, its future was cancelled, or the worker ends) cancels the call or other
// cancellable operation that it awaits, and from then on each await of a future throws CancelledError; code between
// awaits is not interrupted. Cancelling a task that awaits a hand-made promise does not cancel that promise. A
// handler's parameters, including references, live until it has ended.

#include <exception>
#include <optional>
#include <utility>

#include "treadle/core/io/task_run.h"

namespace treadle {

template <class T>
class Task;

namespace io {

template <class T>
class AwaitedFuture {
 public:
  AwaitedFuture(Future<T> future, TaskRun& run) : future_(std::move(future)), run_(run) {}

  bool await_ready() const { return future_.ready() || run_.cancelled(); }
  void await_suspend(std::coroutine_handle<> at) {
    auto state = sharedStateOf(future_);
    UniqueFunction<void()> cancel;
    if (state->cancelHook) cancel = [future = future_]() mutable { future.cancel(); };
    run_.await(*state, std::move(cancel), at);
  }
  T await_resume() {
    if (run_.cancelled()) {
      if (sharedStateOf(future_)->cancelHook) future_.cancel();
      raise(treadle::cancelled("the task was cancelled"));
    }
    return future_.wait();
  }

 private:
  Future<T> future_;
  TaskRun& run_;
};

// Runs a task for the coroutine that awaits it, and returns its result or throws its exception.
template <class T>
class AwaitedTask {
 public:
  AwaitedTask(Task<T> task, TaskRun& run) : task_(std::move(task)), run_(run) {}

  bool await_ready() const noexcept { return false; }
  void await_suspend(std::coroutine_handle<> caller) { TaskRun::goOnWith(task_.start(caller, run_)); }
  T await_resume() { return task_.take(); }

 private:
  Task<T> task_;
  TaskRun& run_;
};

// The base of promises whose coroutines may await Futures and Tasks.
class AwaitingPromise {
 public:
  TaskRun* run = nullptr;  // set before the coroutine begins

  template <class T>
  AwaitedFuture<T> await_transform(Future<T> future) {
    return {std::move(future), *run};
  }
  template <class T>
  AwaitedTask<T> await_transform(Task<T> task) {
    return {std::move(task), *run};
  }
};

class TaskPromiseCore : public AwaitingPromise {
 public:
  std::coroutine_handle<> caller;
  std::exception_ptr failure;

  struct BackToCaller {
    bool await_ready() const noexcept { return false; }
    template <class Promise>
    void await_suspend(std::coroutine_handle<Promise> ended) const noexcept {
      TaskRun::goOnWith(ended.promise().caller);
    }
    void await_resume() const noexcept {}
  };
  std::suspend_always initial_suspend() const noexcept { return {}; }
  BackToCaller final_suspend() const noexcept { return {}; }
  void unhandled_exception() { failure = std::current_exception(); }
};

template <class T>
class TaskPromise : public TaskPromiseCore {
 public:
  Task<T> get_return_object();
  template <class V>
  void return_value(V&& value) {
    value_.emplace(std::forward<V>(value));
  }
  T take() {
    if (failure) std::rethrow_exception(failure);
    return std::move(*value_);
  }

 private:
  std::optional<T> value_;
};

template <>
class TaskPromise<void> : public TaskPromiseCore {
 public:
  Task<void> get_return_object();
  void return_void() const noexcept {}
  void take() const {
    if (failure) std::rethrow_exception(failure);
  }
};

}  // namespace io

template <class T = void>
class [[nodiscard]] Task {
 public:
  using promise_type = io::TaskPromise<T>;

  explicit Task(std::coroutine_handle<promise_type> frame) : frame_(frame) {}
  Task(Task&& other) noexcept : frame_(std::exchange(other.frame_, nullptr)) {}
  Task& operator=(Task&&) = delete;
  ~Task() {
    if (frame_) frame_.destroy();
  }

 private:
  friend class io::AwaitedTask<T>;

  std::coroutine_handle<> start(std::coroutine_handle<> caller, io::TaskRun& run) {
    if (!frame_) raise(failedPrecondition("this Task was moved from"));
    frame_.promise().caller = caller;
    frame_.promise().run = &run;
    return frame_;
  }
  T take() { return frame_.promise().take(); }

  std::coroutine_handle<promise_type> frame_;
};

namespace io {

template <class T>
Task<T> TaskPromise<T>::get_return_object() {
  return Task<T>(std::coroutine_handle<TaskPromise>::from_promise(*this));
}
inline Task<void> TaskPromise<void>::get_return_object() {
  return Task<void>(std::coroutine_handle<TaskPromise>::from_promise(*this));
}

// The outermost coroutine of a run: turns the result or exception of a task into a future's result.
class Driver {
 public:
  struct promise_type : AwaitingPromise {
    Driver get_return_object() { return Driver(std::coroutine_handle<promise_type>::from_promise(*this)); }
    std::suspend_always initial_suspend() const noexcept { return {}; }
    std::suspend_always final_suspend() const noexcept { return {}; }
    void return_void() const noexcept {}
    void unhandled_exception() const noexcept { std::terminate(); }  // the body catches all
  };
  explicit Driver(std::coroutine_handle<promise_type> frame) : frame(frame) {}

  const std::coroutine_handle<promise_type> frame;
};

template <class T>
Driver drive(Task<T> task, Promise<T> promise) {
  try {
    if constexpr (std::is_void_v<T>) {
      co_await std::move(task);
      promise.set();
    } else {
      T value = co_await std::move(task);  // destroys the task before the future is ready
      promise.set(std::move(value));
    }
  } catch (...) {
    promise.fail(statusOfCurrentException("a task"));
  }
}

// A task that has not begun.
template <class T>
struct ReadyTask {
  Future<T> future;  // cancelling it cancels the task
  std::shared_ptr<TaskRun> run;
};

// `post` and `keep`: as for TaskRun. `continuations` runs the continuations of the future.
template <class T>
ReadyTask<T> makeReady(Task<T> task, ContinueOn continuations, TaskRun::Post post, std::shared_ptr<void> keep = {}) {
  Promise<T> promise(std::move(continuations));
  Future<T> future = promise.future();
  auto run = std::make_shared<TaskRun>(std::move(post), std::move(keep));
  sharedStateOf(future)->cancelHook = [weak = std::weak_ptr(run)] {
    if (auto alive = weak.lock()) alive->cancel();
  };
  Driver driver = drive(std::move(task), std::move(promise));
  driver.frame.promise().run = run.get();
  run->own(driver.frame);
  return {std::move(future), std::move(run)};
}

// A task that calls `f` when it begins; `f` returns a task. `f` must outlive it.
template <class F>
auto taskOf(F& f) -> std::invoke_result_t<F&> {
  co_return co_await f();
}

template <class T>
inline constexpr bool kIsTask = false;
template <class T>
inline constexpr bool kIsTask<Task<T>> = true;

}  // namespace io
}  // namespace treadle

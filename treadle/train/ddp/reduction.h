#pragma once
// The work of a hook on one bucket in one pass, as a coroutine that the reducer drives. It runs to the end of its first
// round, when its operations have begun, and goes on when the operations of all buckets have ended. Where the pass has
// failed it is destroyed in between. Owned by a GradientExchange; used by one thread at a time.

#include <coroutine>
#include <exception>
#include <type_traits>
#include <utility>

#include "treadle/core/base/error.h"
#include "treadle/core/group/group.h"
#include "treadle/train/ddp/operations.h"

namespace treadle {

// The operations that a hook begins. All ranks begin the same ones: members of a group match operations by their order.
// So what begins must depend on nothing but shapes, dtypes, options and what is the same on all ranks. Each is added or
// awaited.
class Exchange {
 public:
  // Ends a round: `co_await exchange.round(operation, ...)` goes on when they have ended well.
  class [[nodiscard]] Round {
   public:
    bool await_ready() const noexcept { return false; }
    void await_suspend(std::coroutine_handle<>) const noexcept {}
    void await_resume() const noexcept {}

   private:
    friend class Exchange;
    Round() = default;
  };

  explicit Exchange(ProcessGroup group) : group_(std::move(group)) {}

  // The group whose members are the ranks. Its other operations are the reducer's. Those that are called with it go by
  // the algorithm that the group forces, if any.
  const ProcessGroup& group() const { return group_; }
  // An operation of the present round, which has just begun. It ends by itself, as operations of a group do by the
  // group's timeout: the pass waits for it without another limit. StateError: the future holds nothing.
  template <class T>
  void add(const Future<T>& operation) {
    if (!operation.valid()) raise(failedPrecondition("Exchange::add was given a Future that holds nothing"));
    if constexpr (std::is_void_v<T>) {
      operations_.push_back(operation);
    } else {
      operations_.push_back(Future<T>(operation).then([](const T&) {}));
    }
  }
  template <class... T>
  Round round(const Future<T>&... operations) {
    (add(operations), ...);
    return {};
  }

  // For the reducer: those that were added since.
  ddp::Operations take() { return std::exchange(operations_, {}); }

 private:
  const ProcessGroup group_;
  ddp::Operations operations_;
};

// What CommHook::reduce returns. It may await rounds and nothing else.
class [[nodiscard]] Reduction {
 public:
  struct promise_type {
    std::exception_ptr failure;

    Reduction get_return_object() { return Reduction(std::coroutine_handle<promise_type>::from_promise(*this)); }
    std::suspend_always initial_suspend() const noexcept { return {}; }
    std::suspend_always final_suspend() const noexcept { return {}; }
    Exchange::Round await_transform(Exchange::Round round) const noexcept { return round; }
    void return_void() const noexcept {}
    void unhandled_exception() { failure = std::current_exception(); }
  };

  Reduction(Reduction&& other) noexcept : frame_(std::exchange(other.frame_, nullptr)) {}
  Reduction& operator=(Reduction&&) = delete;
  ~Reduction() {
    if (frame_) frame_.destroy();
  }

  // For the reducer: runs to the end of the next round, or to the end. Returns whether it ends a round, and throws what
  // the hook throws.
  bool next() {
    frame_.resume();
    if (frame_.promise().failure) std::rethrow_exception(frame_.promise().failure);
    return !frame_.done();
  }

 private:
  explicit Reduction(std::coroutine_handle<promise_type> frame) : frame_(frame) {}

  std::coroutine_handle<promise_type> frame_;
};

}  // namespace treadle

#pragma once
// Lets many threads in to what one of them will take down: who got in is waited for, and after that nobody gets in.
// Going in and out costs an atomic operation each. Any thread; `close` not from inside.

#include <atomic>
#include <cstdint>
#include <utility>

namespace treadle::base {

class Gate {
 public:
  // Inside for as long as it lives, on the thread that made it. Empty: the gate was closed.
  class Use {
   public:
    Use() = default;
    explicit Use(Gate& gate) : gate_(gate.enter() ? &gate : nullptr) {}
    Use(Use&& other) noexcept : gate_(std::exchange(other.gate_, nullptr)) {}
    Use& operator=(Use&&) = delete;
    ~Use() {
      if (gate_ != nullptr) gate_->leave();
    }
    explicit operator bool() const { return gate_ != nullptr; }

   private:
    Gate* gate_ = nullptr;
  };

  Gate() = default;
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;

  // Lets nobody in any more, and returns when all are out.
  void close() {
    state_.fetch_or(kClosed);
    for (uint32_t state = state_.load(); state != kClosed; state = state_.load()) state_.wait(state);
  }

  // Whether this thread is inside of one, whose end it must not wait for.
  static bool insideHere() { return inside_ > 0; }

 private:
  static constexpr uint32_t kClosed = uint32_t{1} << 31;

  bool enter() {
    if ((state_.fetch_add(1) & kClosed) != 0) {
      stepBack();
      return false;
    }
    ++inside_;
    return true;
  }
  void leave() {
    --inside_;
    stepBack();
  }
  void stepBack() {
    if (state_.fetch_sub(1) == kClosed + 1) state_.notify_all();
  }

  std::atomic<uint32_t> state_ = 0;  // how many are inside, and whether it is closed
  static inline thread_local int inside_ = 0;
};

}  // namespace treadle::base

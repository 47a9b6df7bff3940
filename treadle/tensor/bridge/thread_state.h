#pragma once
// Threads that read messages and run tasks do so for many, under the thread state that a fresh thread has (gradients
// on, no inference mode, no autocast). A thread of the pool is given it after every task: a handler that turned grad
// mode off and threw would otherwise change the results of strangers. A thread that waits for its own answer has it
// while it reads: otherwise a caller in inference mode would make inference tensors of the answers of others. Owned by
// the interceptor of a worker.

#include <ATen/ThreadLocalState.h>

#include <memory>

namespace treadle::bridge {

class CleanThreadState {
 public:
  // Takes the state of a thread started for this, not that of the caller, who may have turned gradients off.
  // Any thread; cheap enough for once per worker, not for once per call.
  CleanThreadState();

  // Gives it to the calling thread, for good: what that had is lost. About 0.1 us and no lock when the thread has it,
  // as after most tasks, and else 0.5 us and a lock of the process.
  void apply() const;

  // While it lives, the calling thread has it; then what it had before again.
  class Scope {
   public:
    explicit Scope(const CleanThreadState& clean) : guard_(clean.state_) {}

   private:
    const at::ThreadLocalStateGuard guard_;
  };

  // Whether the calling thread is known to have it. Never with a libtorch of another release than this was written for,
  // nor in a process that had libtorch's Python when this was made: what Python keeps with a thread cannot be compared.
  bool isThere() const;

 private:
  struct Visible;

  at::ThreadLocalState state_;
  std::shared_ptr<const Visible> visible_;  // of that state; null: not to be compared
};

}  // namespace treadle::bridge

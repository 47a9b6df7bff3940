#pragma once
// Handlers run on pool threads that others used before: each starts with the thread state that a fresh thread has
// (gradients on, no inference mode, no autocast), whatever the thread did before.

#include <ATen/ThreadLocalState.h>

namespace treadle::bridge {

class CleanThreadState {
 public:
  // Of the calling thread now: make it where the worker is made, and hand it to a Guard.
  CleanThreadState();

  class Guard {
   public:
    explicit Guard(const CleanThreadState& state) : guard_(state.state_) {}

   private:
    at::ThreadLocalStateGuard guard_;
  };

 private:
  at::ThreadLocalState state_;
};

}  // namespace treadle::bridge

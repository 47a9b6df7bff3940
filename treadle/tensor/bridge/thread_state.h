#pragma once
// Handlers run on pool threads that others used before: each starts with the thread state that a fresh thread
// has (gradients on, no inference mode, no autocast), whatever the thread did before. A handler that turned
// grad mode off and threw would otherwise change the results of strangers. Owned by the interceptor of a
// worker; guards are made on the thread that runs the handler, and put back what that thread had.

#include <ATen/ThreadLocalState.h>

namespace treadle::bridge {

class CleanThreadState {
 public:
  // Takes the state of a thread started for this, not that of the caller, who may have turned gradients off.
  // Any thread; cheap enough for once per worker, not for once per call.
  CleanThreadState();

  // For its lifetime the thread that made it has the clean state. On the stack of a handler.
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

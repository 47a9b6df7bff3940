#pragma once
// Pool threads read messages and run tasks for many, so each is given the thread state that a fresh thread has
// (gradients on, no inference mode, no autocast) after every task. A handler that turned grad mode off and threw would
// otherwise change the results of strangers. Owned by the interceptor of a worker.

#include <ATen/ThreadLocalState.h>

namespace treadle::bridge {

class CleanThreadState {
 public:
  // Takes the state of a thread started for this, not that of the caller, who may have turned gradients off.
  // Any thread; cheap enough for once per worker, not for once per call.
  CleanThreadState();

  // Gives it to the calling thread, for good: what that had is lost. About 150 ns.
  void apply() const { at::ThreadLocalState::setThreadLocalState(state_); }

 private:
  at::ThreadLocalState state_;
};

}  // namespace treadle::bridge

#pragma once
// Runs a loop of ours inside libtorch's engine. Hooks may ask the engine for the current pass
// (queue_callback, non-reentrant checkpointing, torch's own DDP), and there is one only inside
// Engine::execute: so we give it a graph of a single node whose work is our loop. Owned by a pass, used by
// one thread at a time.

#include <ATen/ThreadLocalState.h>
#include <ATen/core/Tensor.h>

#include <functional>

#include "treadle/tensor/autograd/torch_compat.h"

namespace treadle::autograd {

class EngineLoop {
 public:
  // Remembers the calling thread's state: autocast, dispatch keys, profiler and the like.
  explicit EngineLoop(bool retainGraph);
  ~EngineLoop();
  EngineLoop(const EngineLoop&) = delete;
  EngineLoop& operator=(const EngineLoop&) = delete;

  // Runs `body` on this thread with the remembered state and grad mode off, then the callbacks that it queued
  // with the engine. Throws what the callbacks throw; `body` itself must not throw.
  void run(const std::function<void()>& body);

 private:
  class LoopNode;

  const bool retainGraph_;
  at::ThreadLocalState state_;
  at::Tensor token_;  // the engine wants one gradient for its root
  NodeRef<LoopNode> node_;
};

}  // namespace treadle::autograd

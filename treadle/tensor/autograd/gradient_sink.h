#pragma once
// What a backward pass needs from the network, and the words both use for a message that carried tensors
// which require gradients. The network half implements `GradientSink`; tests implement it in memory.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "treadle/core/base/status.h"

namespace treadle::autograd {

class Pass;

// One message of the forward pass, seen from one of its two ends. The id is unique within the context.
struct MessageInfo {
  int64_t messageId = 0;
  int peerRank = -1;     // the worker at the other end
  std::string function;  // what was called, for error messages; may be empty
};

// Lives as long as the passes made with it (pass.h). Called on the thread that drains the pass (onIdle also
// on threads that complete pending work), never with a lock of this room held, so it may take its own locks
// and call back.
class GradientSink {
 public:
  virtual ~GradientSink() = default;

  // Sends the gradients of a received message back to its sender: one per tensor that came with a gradient,
  // in their order, undefined where the pass has none. Called once per receive node and pass. Must not wait
  // for the peer. A failure fails the pass.
  virtual Status sendGradients(Pass& pass, const MessageInfo& message, std::vector<at::Tensor> gradients) = 0;

  // The pass went idle or failed: see `Pass::idle()` and `Pass::status()`. It is a hint that may come late
  // (new gradients may have arrived since), so decide by asking the pass, see Note [Idle] in pass.h.
  virtual void onIdle(Pass& pass) = 0;
};

}  // namespace treadle::autograd

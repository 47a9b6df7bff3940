#pragma once
// What a backward pass needs from the network, and the words both use for a message that carried tensors
// which require gradients. The network half implements `GradientSink`; tests implement it in memory.

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "treadle/core/base/status.h"

namespace treadle::autograd {

class Pass;

// One message of the forward pass, seen from one of its two ends. Its sender numbers the messages that it sends within
// a context from 0.
struct MessageInfo {
  int64_t messageId = 0;
  int peerRank = -1;     // the worker at the other end
  std::string function;  // what was called, for error messages; may be empty
};

// Of one tensor. None: nothing that the pass began from depends on that tensor, so that what is behind it does not run,
// as in a graph of one process. An undefined one is a gradient of zero: what is behind it runs.
using MaybeGradient = std::optional<at::Tensor>;

inline bool allReached(const std::vector<MaybeGradient>& gradients) {
  return std::ranges::all_of(gradients, [](const MaybeGradient& gradient) { return gradient.has_value(); });
}

inline bool noneReached(const std::vector<MaybeGradient>& gradients) {
  return std::ranges::none_of(gradients, [](const MaybeGradient& gradient) { return gradient.has_value(); });
}

// For a message of the forward pass: one for each of its tensors that came with a gradient, in their order.
struct MessageGradients {
  int64_t messageId = 0;
  std::vector<MaybeGradient> gradients;
};

// Lives as long as the passes made with it (pass.h). Called on the thread that drains the pass (onIdle also
// on threads that complete pending work), never with a lock of this room held, so it may take its own locks
// and call back.
class GradientSink {
 public:
  virtual ~GradientSink() = default;

  // Sends the gradients of received messages back to their sender `rank`. Once per receive node and pass; what became
  // known by one node comes together. Must not wait for the peer. A failure fails the pass.
  virtual Status sendGradients(Pass& pass, int rank, std::vector<MessageGradients> messages) = 0;

  // The pass went idle or failed: see `Pass::idle()` and `Pass::status()`. It is a hint that may come late
  // (new gradients may have arrived since), so decide by asking the pass, see Note [Idle] in pass.h.
  virtual void onIdle(Pass& pass) = 0;

  // A worker's name for error messages.
  virtual std::string nameOf(int rank) const { return "worker " + std::to_string(rank); }
};

}  // namespace treadle::autograd

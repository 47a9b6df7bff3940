#pragma once
// What workers tell each other of a backward pass, as structs; docs/protocol/autograd.md has them as bytes, and
// backward.h the functions that take them. Plain values.

#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

#include "treadle/tensor/autograd/gradient_sink.h"

namespace treadle::autograd {

// A pass of a context, and whether its graph serves again.
struct PassId {
  int64_t context = 0;
  int64_t pass = 0;
  bool retainGraph = false;
};
inline auto fields(PassId& id) { return std::tie(id.context, id.pass, id.retainGraph); }

inline auto fields(MessageGradients& message) { return std::tie(message.messageId, message.gradients); }

// SMART mode: which sends of the callee take part, ahead of their gradients.
struct BeginMessage {
  PassId id;
  std::vector<int64_t> sends;
};
inline auto fields(BeginMessage& message) { return std::tie(message.id, message.sends); }

// What receive nodes send to where their messages came from. Answered when the callee has nothing left to do for it
// (backward.h); a failure of the pass at the callee is the answer too.
struct GradientMessage {
  PassId id;
  std::vector<MessageGradients> messages;
};
inline auto fields(GradientMessage& message) { return std::tie(message.id, message.messages); }

// The pass is over. Answered when it has ended at the callee, and at those whom that tells.
struct FinishMessage {
  PassId id;
  std::string failure;  // empty: the pass went well
};
inline auto fields(FinishMessage& message) { return std::tie(message.id, message.failure); }

}  // namespace treadle::autograd

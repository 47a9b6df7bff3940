#pragma once
// The options of autograd contexts and backward passes. Plain values with defaults. The two modes are those of
// PyTorch's RFC on distributed autograd (pytorch/pytorch issue 23110), which describes the trade-off.

#include <optional>

#include "treadle/core/base/clock.h"

namespace treadle {

// Which sent tensors a pass waits for.
enum class AutogradMode {
  // Those that the roots depend on. Each message carries which earlier messages it depends on: about one bit for each.
  kSmart,
  // All: every tensor that was sent within the context must get a gradient; otherwise the pass fails and names those
  // that got none. Messages carry nothing extra. For programs that are known to use everything that they send.
  kFast,
};

// Per context, because all messages of a context are recorded under its mode.
struct AutogradOptions {
  // Default: the mode given to treadle::join, which is kSmart by default.
  std::optional<AutogradMode> mode = {};
};

// Per call of backward. Applies on every worker that the pass reaches.
struct BackwardOptions {
  bool retainGraph = false;  // keep what nodes saved, so that backward may be called again on the same graph
  // TimeoutError when the pass takes longer; the context cannot be used then. Nothing interrupts a node that runs:
  // there the pass ends after that node. Without a limit a pass waits as long as the workers that take part live.
  Duration timeout = kNoTimeout;
};

}  // namespace treadle

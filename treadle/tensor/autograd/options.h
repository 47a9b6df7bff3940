#pragma once
// Choices of a distributed backward pass. Plain values; the defaults are what there is. The two modes are
// those of PyTorch's RFC on distributed autograd (pytorch/pytorch issue 23110), which describes the trade.

#include <optional>

#include "treadle/core/base/clock.h"

namespace treadle {

// Which sent tensors a pass waits for.
enum class AutogradMode {
  // Those that the roots depend on. Each message carries which earlier ones it depends on: about a bit for each.
  kSmart,
  // All: every tensor that was sent within the context must get a gradient; one that gets none makes the pass fail and
  // is named. Messages carry nothing for it. Good where a program is known to use all that it sends.
  kFast,
};

// Per context. The mode belongs to the context because all its messages are recorded under it.
struct AutogradOptions {
  // Not given: what was given to treadle::join, which is kSmart when nothing was.
  std::optional<AutogradMode> mode = {};
};

// Per call of backward. It holds on every worker that the pass reaches.
struct BackwardOptions {
  bool retainGraph = false;  // keep what nodes saved, so that backward may be called again on the same graph
  // TimeoutError when it takes longer; the context is of no use then. Nothing interrupts a node that runs: the pass
  // ends there when it has. By itself a pass waits as long as the workers live that take part.
  Duration timeout = kWhilePeerLives;
};

}  // namespace treadle

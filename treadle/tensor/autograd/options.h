#pragma once
// Choices of a distributed backward pass. Plain values.

namespace treadle {

// Which sent tensors a pass waits for. kFast: every tensor that was sent within the context must get a
// gradient; one that gets none makes the pass fail and is named. kSmart, which finds out by itself which take
// part, is not there yet: asking for it throws StateError.
enum class AutogradMode { kSmart, kFast };

struct AutogradOptions {
  AutogradMode mode = AutogradMode::kFast;
};

struct BackwardOptions {
  bool retainGraph = false;  // keep what nodes saved, so that backward may be called again on the same graph
};

}  // namespace treadle

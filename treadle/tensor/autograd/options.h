#pragma once
// Choices of a distributed backward pass. Plain values; the defaults are what there is. The two modes are
// those of PyTorch's RFC on distributed autograd (pytorch/pytorch issue 23110), which describes the trade.

namespace treadle {

// Which sent tensors a pass waits for. kFast: every tensor that was sent within the context must get a
// gradient; one that gets none makes the pass fail and is named. kSmart, which finds out by itself which take
// part, is not there yet: asking for it throws StateError.
enum class AutogradMode { kSmart, kFast };

// Per context. The mode belongs to the context because all its messages are recorded under it.
struct AutogradOptions {
  AutogradMode mode = AutogradMode::kFast;
};

// Per call of backward. It holds on every worker that the pass reaches.
struct BackwardOptions {
  bool retainGraph = false;  // keep what nodes saved, so that backward may be called again on the same graph
};

}  // namespace treadle

#pragma once
// Running a node in two parts: first the gradients that go on, which other workers may wait for, and later those of
// parameters, which nobody waits for before the pass ends. So a worker sends the gradient of what it has received
// before it computes those of its weights, while the other workers are at work with it. Source: P. Qi et al., "Zero
// Bubble Pipeline Parallelism", 2023, which splits layers into B and W. No state; on a thread that is inside the engine
// (engine_loop.h).

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

#include "treadle/tensor/autograd/gradient_sink.h"
#include "treadle/tensor/autograd/torch_compat.h"

namespace treadle::autograd {

// By edge of a node: whether its gradient goes on, or ends in a parameter and goes nowhere else.
struct Parts {
  std::vector<bool> now, later;
  size_t bytesKept = 0;  // of what the later part needs: the node's own gradient, and the factors of its parameters
};

// Nothing: the node runs whole, as it has no edges of both kinds, or would not compute them one by one at the same cost
// (only products and convolutions do), or would call a program's hooks twice, or somebody else has its gradient too,
// and might change it in place between the parts.
std::optional<Parts> partsOf(Node& node, const std::vector<MaybeGradient>& gradients);

// While it lives, the node that runs on this thread computes the gradients of these edges alone.
class OnlyEdges {
 public:
  OnlyEdges(const Node& node, const std::vector<bool>& edges);
  ~OnlyEdges();
  OnlyEdges(const OnlyEdges&) = delete;
  OnlyEdges& operator=(const OnlyEdges&) = delete;
};

}  // namespace treadle::autograd

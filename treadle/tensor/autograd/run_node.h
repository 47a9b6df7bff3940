#pragma once
// Running one node the way libtorch's engine does, hooks included. No state; the caller sees to thread-local
// state and to being inside the engine (engine_loop.h).

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "treadle/core/base/status.h"
#include "treadle/tensor/autograd/gradient_sink.h"
#include "treadle/tensor/autograd/torch_compat.h"

namespace treadle::autograd {

// What the node's inputs become on the way in: tensor hooks, then retain_grad, then the node's own pre-hooks.
std::vector<at::Tensor> applyPreHooks(Node& node, std::vector<at::Tensor> gradients);

// All hooks of a receive node, each of whose gradients is of a tensor of its own: the hooks of those that have none are
// not called. Post-hooks see no outputs, as the node has no edges.
void applyReceiveHooks(Node& node, std::vector<MaybeGradient>& gradients);

// Runs the node on gradients that have not been through its hooks yet; returns one per edge, checked and
// reduced to the shapes behind the edges. Releases what the node saved unless `retainGraph`. Throws what the
// node throws.
std::vector<at::Tensor> runNode(Node& node, std::vector<at::Tensor> gradients, bool retainGraph);

// The exception in flight as a failure of `what` ("autograd node MulBackward0"); only inside a catch block.
Status failureOf(const std::string& what);

}  // namespace treadle::autograd

#pragma once
// A node of an autograd graph whose backward says that it is reached, and waits until the test lets it go on.

#include <torch/csrc/autograd/custom_function.h>

#include "tests/support/gate.h"

namespace treadle::test {

// Of the test that runs. Made before the job, as handlers may run until that is over.
struct NodeGates {
  NodeGates() { here = this; }
  ~NodeGates() { here = nullptr; }
  NodeGates(const NodeGates&) = delete;
  NodeGates& operator=(const NodeGates&) = delete;

  static inline NodeGates* here = nullptr;

  Gate reached, released;
};

struct GatedNode : torch::autograd::Function<GatedNode> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x) { return x.clone(); }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 torch::autograd::variable_list gradients) {
    NodeGates::here->reached.open();
    NodeGates::here->released.wait();
    return gradients;
  }
};

}  // namespace treadle::test

#pragma once
// The leaves of a loss: the tensors whose `.grad` a plain backward pass from it writes. A function without state.

#include <ATen/core/Tensor.h>

#include <vector>

namespace treadle::ddp {

struct LossLeaf {
  at::Tensor tensor;
  bool isHooked = false;  // something is called after its gradient, as a reducer is
};

// Each once. Walks the graph, with a stack of its own: a recurrent model may be a chain of millions of nodes. Other
// threads may walk the same graph, or compute its gradients. What a node computes only in the backward pass, such as a
// checkpoint, is not seen.
std::vector<LossLeaf> leavesOf(const at::Tensor& loss);

}  // namespace treadle::ddp

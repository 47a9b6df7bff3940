#pragma once
// Checkpointing: the graph of a segment of the model is not kept in the forward pass, but made by running the segment
// again when its gradients are needed. Memory for computation (T. Chen et al., "Training Deep Nets with Sublinear
// Memory Cost", 2016). It works in plain and in distributed backward passes. Files of tensors are in
// <treadle/checkpoint.h>.

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

namespace treadle {

struct CheckpointOptions {
  // Leaves that the segment uses besides its inputs and that shall get gradients: `module->parameters()`.
  std::vector<at::Tensor> parameters = {};
  // A second run draws the random numbers of the first one, as dropout needs. They are those of libtorch's default
  // generator of the CPU, which the process shares. So no other thread may draw from it during a run: in the first run
  // it would take some of the segment's numbers, so that the second run draws others and the gradients are those of
  // another forward pass; what it draws in a second run comes again later. Handlers with dropout on one worker have to
  // take turns. Without effect where the segment draws nothing.
  bool keepRandomNumbers = true;
};

using CheckpointSegment = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>& inputs)>;

// Runs `segment` without gradients, and once more in each backward pass that reaches its results, under the autocast
// state of the first run. All its results are differentiated in that one run. Where gradients are off, or nothing
// requires one, the segment just runs.
//
// The segment must compute the same each time from the tensors that it is called with; its side effects, such as new
// running statistics of a BatchNorm, happen in each run. It lives as long as the graph of its results, and may run on
// another thread, while other calls use its modules: capture these by value. Within an AutogradContext it can make no
// remote calls: StateError names the function.
//
// ArgumentError: an input, a parameter or a result is undefined, a parameter is no leaf, or the segment changes one of
// them in place. The backward pass fails with StateError where the segment depends on another tensor that requires a
// gradient (a leaf, one that was computed before the segment, one from another worker); where a parameter has hooks
// (`register_hook`), which would run twice; where the segment returns another number of results than before; and with
// `create_graph`.
std::vector<at::Tensor> checkpoint(CheckpointSegment segment, const std::vector<at::Tensor>& inputs,
                                   const CheckpointOptions& options = {});
at::Tensor checkpoint(std::function<at::Tensor(const at::Tensor& input)> segment, const at::Tensor& input,
                      const CheckpointOptions& options = {});

}  // namespace treadle

namespace treadle::autograd {

// Whether a checkpointed segment runs on this thread.
bool isInSegment();

}  // namespace treadle::autograd

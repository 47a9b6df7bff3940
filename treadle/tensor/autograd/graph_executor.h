#pragma once
// The single-threaded heart of a pass: which local nodes it will reach, which of them are ready, and running
// them. Knows nothing of the network or of threads. Owned by a Pass, whose draining thread is the only one to
// use it. It does for one worker what torch::autograd::Engine does with a GraphTask, which cannot be used: a
// GraphTask's roots must all be known when it starts (docs/rooms/autograd.md).

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "treadle/core/base/status.h"
#include "treadle/tensor/autograd/dependencies.h"
#include "treadle/tensor/autograd/gradients.h"
#include "treadle/tensor/autograd/hooked_leaves.h"
#include "treadle/tensor/autograd/leaf_slots.h"
#include "treadle/tensor/autograd/ready_queue.h"
#include "treadle/tensor/autograd/root.h"
#include "treadle/tensor/autograd/send_node.h"

namespace treadle::autograd {

class GraphExecutor {
 public:
  GraphExecutor(int64_t contextId, Gradients& gradients, LeafSlots& slots, bool retainGraph)
      : contextId_(contextId), gradients_(gradients), retainGraph_(retainGraph), hookedLeaves_(slots, contextId) {}

  // Counts everything behind the sends and the roots, and reserves the parameters with hooks among it.
  // Returns the nodes that are ready with the gradients of the roots alone. Call it once, first.
  Result<std::vector<ReadyNode>> prepare(const std::vector<NodeRef<SendNode>>& sends, const std::vector<Root>& roots);

  void push(ReadyNode ready) { ready_.push(std::move(ready)); }
  bool hasReady() const { return !ready_.empty(); }

  // Runs the first ready node; what it makes ready is queued. Fails with the node's name when it or a hook
  // throws.
  Status runNext();

  // Nodes that still wait for gradients.
  size_t waiting() const { return dependencies_.waiting(); }

  // Receive nodes that the pass reaches.
  std::vector<int64_t> receivedIds() const;

  HookedLeaves& hookedLeaves() { return hookedLeaves_; }

 private:
  Status countRoots(const std::vector<Root>& roots);
  // Refuses receive nodes of other contexts, and claims the parameters with hooks.
  Status checkEnds();
  void run(ReadyNode task);
  void runLeaf(torch::autograd::AccumulateGrad& leaf, std::vector<at::Tensor> gradients);

  const int64_t contextId_;
  Gradients& gradients_;
  const bool retainGraph_;
  HookedLeaves hookedLeaves_;
  Dependencies dependencies_;
  ReadyQueue ready_;
  torch::autograd::edge_list rootEdges_;  // keep the graph of the roots alive
};

}  // namespace treadle::autograd

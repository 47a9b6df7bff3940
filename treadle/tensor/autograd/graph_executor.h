#pragma once
// The single-threaded heart of a pass: which local nodes it will reach, which of them are ready, and running
// them. Knows nothing of the network or of threads. Owned by a Pass, whose draining thread is the only one to
// use it. It does for one worker what torch::autograd::Engine does with a GraphTask, which cannot be used: a
// GraphTask's roots must all be known when it starts (docs/rooms/autograd.md).

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "treadle/core/base/status.h"
#include "treadle/tensor/autograd/context_graph.h"
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

  // Runs the first ready node; what it makes ready is queued. Fails with the node's name, and `madeFor` it, when it or
  // a hook throws.
  Status runNext(const std::function<std::string(const Node&)>& madeFor);

  // The gradients that receive nodes have got, by the worker they go to. To be sent unless another receive node is
  // next.
  std::map<int, std::vector<MessageGradients>> takeOutgoing() { return std::exchange(outgoing_, {}); }
  bool receiveIsNext() const { return ready_.receiveIsNext(); }

  // Nodes that still wait for gradients.
  size_t waiting() const { return dependencies_.waiting(); }

  // The messages that came of which every tensor was reached: no later pass can go through them.
  const std::vector<ReceivedId>& spentReceives() const { return spentReceives_; }

  HookedLeaves& hookedLeaves() { return hookedLeaves_; }

 private:
  Status countRoots(const std::vector<Root>& roots);
  // Refuses receive nodes of other contexts, and claims the parameters with hooks.
  Status checkEnds();
  void run(ReadyNode task);
  // The edges that the node runs for now, empty: all; what is left of it is queued.
  std::vector<bool> takePart(ReadyNode& task);
  void runReceive(Node& node, const MessageInfo& message, std::vector<MaybeGradient> gradients);
  void runSend(const SendNode& node, std::vector<MaybeGradient> gradients);
  void runLeaf(torch::autograd::AccumulateGrad& leaf, std::vector<at::Tensor> gradients);
  void deliver(const Edge& edge, MaybeGradient gradient);

  const int64_t contextId_;
  Gradients& gradients_;
  const bool retainGraph_;
  HookedLeaves hookedLeaves_;
  Dependencies dependencies_;
  ReadyQueue ready_;
  size_t bytesKept_ = 0;  // for the later parts of nodes
  std::map<int, std::vector<MessageGradients>> outgoing_;
  std::vector<ReceivedId> spentReceives_;
  torch::autograd::edge_list rootEdges_;  // keep the graph of the roots alive
};

}  // namespace treadle::autograd

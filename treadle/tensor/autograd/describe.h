#pragma once
// Shows the distributed graph of a context: on each worker the messages that were sent and received within the context,
// and the operations between them, as far as they still live. A pass that does not retain the graph frees the parts
// that it ran, so use this between forward and backward.

#include <string>
#include <vector>

#include "treadle/core/worker/worker.h"
#include "treadle/tensor/autograd/autograd_context.h"
#include "treadle/tensor/autograd/graph_part.h"

namespace treadle {

enum class GraphFormat {
  kText,      // a list for each worker: one line per node, with its inputs
  kGraphviz,  // the language of `dot`: a box for each worker, dashed lines for messages
};

// Asks all workers that take part, on the calling thread. `roots`: tensors of this worker, such as a loss, whose graph
// is drawn too; without them, operations whose results were never sent are left out. Throws PeerLostError or
// TimeoutError with the name of a worker that does not answer within the time limit of calls (JoinOptions).
std::string describe(const AutogradContext& context, GraphFormat format = GraphFormat::kText,
                     const std::vector<at::Tensor>& roots = {});

namespace autograd {

using treadle::describe;

// This worker's part, for the worker that draws. A context that is unknown here has an empty part.
GraphPart onDescribe(CallContext& call, int64_t contextId);

}  // namespace autograd

}  // namespace treadle

#pragma once
// The distributed graph of a context for people to look at: on each worker the messages that left and arrived within
// the context and the operations between them, as far as they still live. A pass that does not retain the graph takes
// with it what it went through, so this is for the time between forward and backward.

#include <string>
#include <vector>

#include "treadle/core/worker/worker.h"
#include "treadle/tensor/autograd/autograd_context.h"
#include "treadle/tensor/autograd/graph_part.h"

namespace treadle {

enum class GraphFormat {
  kText,      // a list for each worker: each line a node and what it is made of
  kGraphviz,  // the language of `dot`: a box for each worker, dashed lines where messages go
};

// Asks all workers that take part, on the thread that calls. `roots`: tensors of this worker, a loss say, whose graph
// is drawn too; of what no message has left for yet nobody else knows. Throws PeerLostError or TimeoutError with the
// name of a worker that does not answer within the time limit of calls (JoinOptions).
std::string describe(const AutogradContext& context, GraphFormat format = GraphFormat::kText,
                     const std::vector<at::Tensor>& roots = {});

namespace autograd {

using treadle::describe;

// What this worker tells the one that draws. A context that is not known here has an empty part.
GraphPart onDescribe(Call& call, int64_t contextId);

}  // namespace autograd

}  // namespace treadle

#include "treadle/tensor/autograd/describe.h"

#include <set>

#include "treadle/tensor/autograd/graph_drawing.h"
#include "treadle/tensor/autograd/interceptor.h"
#include "treadle/tensor/bridge/tensor_codec.h"

namespace treadle {
namespace autograd {
namespace {

GraphPart partOf(ContextState& context, const std::vector<at::Tensor>& roots) {
  GraphPart part{nodesOf(*context.graph, roots), {}};
  MutexLock lock(context.mutex);
  part.others.assign(context.known.begin(), context.known.end());
  return part;
}

// A place that is none would name a node that is not drawn.
Status checkPart(const GraphPart& part, const std::string& worker) {
  for (size_t i = 0; i < part.nodes.size(); ++i)
    for (int64_t place : part.nodes[i].madeOf)
      if (place < 0 || static_cast<size_t>(place) >= i)
        return dataLoss("worker '" + worker + "' described a graph in which a node uses one that comes later");
  return {};
}

}  // namespace

GraphPart onDescribe(CallContext& call, int64_t contextId) {
  Result<ContextPtr> context = interceptorOf(call.worker()).contexts().find(contextId);
  return context.ok() ? partOf(**context, {}) : GraphPart();
}

}  // namespace autograd

std::string describe(const AutogradContext& context, GraphFormat format, const std::vector<at::Tensor>& roots) {
  using namespace autograd;
  Worker& worker = context.worker_;
  CurrentContext none(interceptorOf(worker), nullptr);
  DrawnGraph graph;
  std::set<int> met = {worker.self().rank};
  std::vector<std::pair<int, Future<GraphPart>>> asked;
  // From worker to worker, as the messages of the context went.
  const auto take = [&](int rank, GraphPart part) {
    const std::string name = worker.peer(rank).name;
    throwIfError(checkPart(part, name));
    graph[rank] = {name, std::move(part.nodes)};
    for (int32_t other : part.others)
      if (met.insert(other).second) asked.emplace_back(other, worker.async<&onDescribe>(other, context.id()));
  };
  take(worker.self().rank, partOf(*context.context_, roots));
  // Grows as they answer.
  for (size_t i = 0; i < asked.size(); ++i) take(asked[i].first, asked[i].second.wait());
  return format == GraphFormat::kText ? asText(graph) : asGraphviz(graph);
}

}  // namespace treadle

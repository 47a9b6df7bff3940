#include "treadle/tensor/autograd/engine_loop.h"

#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/engine.h>

namespace treadle::autograd {

// The one node of the graph that the engine is given. Its gradient input is never looked at.
class EngineLoop::LoopNode final : public Node {
 public:
  explicit LoopNode(const at::Tensor& token) { add_input_metadata(token); }

  std::string name() const override { return "TreadlePass"; }

  const std::function<void()>* body = nullptr;

 protected:
  torch::autograd::variable_list apply(torch::autograd::variable_list&&) override {
    // No outputs and no edges: the engine is done with this graph when the loop is.
    (*body)();
    return {};
  }
};

EngineLoop::EngineLoop(bool retainGraph)
    : retainGraph_(retainGraph), token_(at::zeros({1})), node_(makeNode<LoopNode>(token_)) {}

EngineLoop::~EngineLoop() = default;  // here, where LoopNode is known

void EngineLoop::run(const std::function<void()>& body) {
  at::ThreadLocalStateGuard guard(state_);
  // With a single root the engine runs it on the calling thread and makes no root node of its own.
  // create_graph is what turns grad mode on or off for the run.
  node_->body = &body;
  torch::autograd::Engine::get_default_engine().execute({Edge(node_, 0)}, {token_}, retainGraph_,
                                                        /*create_graph=*/false, /*accumulate_grad=*/true);
}

}  // namespace treadle::autograd

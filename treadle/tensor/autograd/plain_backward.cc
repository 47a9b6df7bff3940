#include "treadle/tensor/autograd/plain_backward.h"

#include <torch/csrc/autograd/engine.h>

#include "treadle/core/base/error.h"
#include "treadle/tensor/autograd/pass.h"

namespace treadle::autograd {
namespace {

using torch::autograd::Engine, torch::autograd::edge_list, torch::autograd::variable_list;

thread_local int depth = 0;

struct Deeper {
  Deeper() { ++depth; }
  ~Deeper() { --depth; }
  Deeper(const Deeper&) = delete;
  Deeper& operator=(const Deeper&) = delete;
};

// Looks where it is called from, and leaves everything to the engine that was there. That one has the threads and the
// state of devices.
class LookingEngine final : public Engine {
 public:
  explicit LookingEngine(Engine& engine) : engine_(engine) {}
  ~LookingEngine() override { stop(); }

  variable_list execute(const edge_list& roots, const variable_list& inputs, bool keepGraph, bool createGraph,
                        bool accumulateGrad, const edge_list& outputs) override {
    // Who names the leaves writes to no others'. Our own loop is not in a node yet when it comes here.
    if (accumulateGrad && outputs.empty() && Pass::isInNode())
      raise(failedPrecondition(
          "a plain backward() was called inside a node or hook of a distributed backward pass, where "
          "it would write .grad of all leaves that it reaches: call torch::autograd::grad there "
          "(checkpointing: the non-reentrant kind), or give backward() the leaves as its inputs"));
    const Deeper deeper;
    return engine_.execute(roots, inputs, keepGraph, createGraph, accumulateGrad, outputs);
  }
  c10::intrusive_ptr<at::ivalue::Future> execute_with_graph_task(
      const std::shared_ptr<torch::autograd::GraphTask>& task, NodePtr root,
      torch::autograd::InputBuffer&& inputs) override {
    return engine_.execute_with_graph_task(task, std::move(root), std::move(inputs));
  }
  std::unique_ptr<torch::autograd::AnomalyMetadata> make_anomaly_metadata() override {
    return engine_.make_anomaly_metadata();
  }
  std::unique_ptr<torch::autograd::SavedVariableHooks> get_default_saved_variable_hooks() override {
    return engine_.get_default_saved_variable_hooks();
  }

 private:
  Engine& engine_;
};

Engine& lookingEngine() {
  // Made before it is put in place, so that the one it asks is not itself.
  static LookingEngine engine(Engine::get_default_engine());
  return engine;
}

}  // namespace

int backwardDepth() { return depth; }

void refusePlainBackwardInNodes() {
  [[maybe_unused]] static const bool done = [] {
    lookingEngine();
    torch::autograd::set_default_engine_stub(&lookingEngine);
    return true;
  }();
}

}  // namespace treadle::autograd

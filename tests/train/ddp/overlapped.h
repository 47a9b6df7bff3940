#pragma once
// What tests of DdpOptions::overlapForward share: a replica that waits for the averages of each layer before its use.

#include <torch/nn/modules/linear.h>

#include <functional>
#include <memory>
#include <utility>

#include "tests/train/ddp/optimizers.h"
#include "tests/train/ddp/uneven.h"

namespace treadle::test::ddp_test {

// Three layers. Forward leaves out the middle one when told so, and calls `beforeUse` with each layer that it uses.
struct LayersImpl : torch::nn::Module {
  LayersImpl()
      : first(register_module("first", torch::nn::Linear(5, 7))),
        middle(register_module("middle", torch::nn::Linear(7, 7))),
        last(register_module("last", torch::nn::Linear(7, 3))) {
    at::NoGradGuard noGrad;
    to(at::kDouble);
    for (size_t i = 0; i < parameters().size(); ++i) parameters()[i].copy_(random(parameters()[i].sizes(), i));
  }
  torch::nn::Linear& ready(torch::nn::Linear& layer) {
    if (beforeUse) beforeUse(*layer);
    return layer;
  }
  at::Tensor forward(const at::Tensor& input, bool skip = false) {
    at::Tensor hidden = at::tanh(ready(first)->forward(input));
    if (!skip) hidden = at::tanh(ready(middle)->forward(hidden));
    return ready(last)->forward(hidden);
  }
  torch::nn::Linear first, middle, last;
  std::function<void(const torch::nn::Module&)> beforeUse;
};
TORCH_MODULE(Layers);

// The same sums in each group.
inline ProcessGroup groupOf(Worker& worker, int size) {
  return ProcessGroup::make(worker, ranks(size), {.sumOrder = SumOrder::kRank});
}

// A replica that steps within the pass, and during the next forward or before `backward` returns.
template <class Optimizer = torch::optim::SGD>
struct Replica {
  Replica(const ProcessGroup& group, bool overlaps, DdpOptions options = smallBuckets())
      : ddp(net, group, completed(std::move(options), overlaps)) {
    net->beforeUse = [this](const torch::nn::Module& layer) { ddp.awaitAverages(layer); };
  }
  DdpOptions completed(DdpOptions options, bool overlaps) {
    options.optimizerInBackward = optimizer;
    options.overlapForward = overlaps;
    return options;
  }
  void backward(int rank, int step, bool skip = false) {
    ddp.forward(inputOf(rank, step), skip).square().mean().backward();
  }
  std::vector<at::Tensor> state() {
    std::vector<at::Tensor> all = fieldsOf(*optimizer, net->parameters());
    for (const at::Tensor& parameter : net->parameters()) all.push_back(parameter.detach().clone());
    return all;
  }

  Layers net;
  std::shared_ptr<Optimizer> optimizer =
      std::make_shared<Optimizer>(net->parameters(), OptimizerWith<Optimizer>::options());
  DistributedDataParallel<Layers> ddp;
};

}  // namespace treadle::test::ddp_test

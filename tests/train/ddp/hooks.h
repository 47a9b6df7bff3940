#pragma once
// What the tests of hooks of DistributedDataParallel share: a module whose gradients are given, and what a pass sends.

#include <functional>
#include <memory>
#include <utility>

#include "tests/train/ddp/net.h"

namespace treadle::test::ddp_test {

using Shapes = std::vector<std::vector<int64_t>>;

inline DdpOptions smallBucketsWith(std::shared_ptr<CommHook> hook) {
  DdpOptions options = smallBuckets();
  options.hook = std::move(hook);
  return options;
}

// Parameters "0", "1", ... of these shapes, which are zeros.
struct WeightsImpl : torch::nn::Module {
  explicit WeightsImpl(const Shapes& shapes, at::ScalarType dtype = at::kFloat) {
    for (const auto& shape : shapes)
      all.push_back(register_parameter(std::to_string(all.size()), at::zeros(shape, dtype)));
  }
  // Its gradients are `gradients`.
  at::Tensor loss(const std::vector<at::Tensor>& gradients) const {
    at::Tensor sum = at::zeros({}, at::kDouble);
    for (size_t i = 0; i < all.size(); ++i)
      if (gradients[i].defined()) sum = sum + at::real((all[i] * gradients[i]).sum()).to(at::kDouble);
    return sum;
  }
  std::vector<at::Tensor> all;
};
TORCH_MODULE(Weights);

// Copies of what an averaged pass makes of this rank's gradients; undefined where no rank has one.
inline std::vector<at::Tensor> averageOf(WeightsImpl& weights, const std::vector<at::Tensor>& gradients) {
  weights.zero_grad();
  weights.loss(gradients).backward();
  std::vector<at::Tensor> averages;
  for (const at::Tensor& weight : weights.all)
    averages.push_back(weight.grad().defined() ? weight.grad().clone() : at::Tensor());
  return averages;
}

// A node that makes a pass of its own over what it is given: parameters arrive several times in one pass.
struct Inner : torch::autograd::Function<Inner> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& input, int64_t weight) {
    context->saved_data["weight"] = weight;
    context->save_for_backward({input});
    return input.mm(weightAt(weight));
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const at::Tensor input = context->get_saved_variables()[0].detach().requires_grad_();
    at::AutoGradMode on(true);
    input.mm(weightAt(context->saved_data["weight"].toInt())).backward(gradients[0]);
    return {input.grad(), at::Tensor()};
  }
  static const at::Tensor& weightAt(int64_t address) { return *reinterpret_cast<const at::Tensor*>(address); }
  static int64_t addressOf(const at::Tensor& weight) { return reinterpret_cast<int64_t>(&weight); }
};

inline at::Tensor lossThatComesTwice(Net& net, int rank, int step) {
  const at::Tensor input = inputOf(rank, step).requires_grad_();
  const at::Tensor hidden = at::tanh(input.mm(net->first) + net->bias);
  const int64_t weight = Inner::addressOf(net->skipped);
  return Inner::apply(at::tanh(Inner::apply(hidden, weight)), weight).mm(net->last).square().mean();
}

// The bytes of tensors that rank 0 of two sends in a pass over parameters of these shapes, after the first pass. The
// exact channel is among them.
inline uint64_t bytesOfAPass(const Shapes& shapes, const std::function<std::shared_ptr<CommHook>()>& makeHook,
                             const std::vector<at::Tensor>& gradients = {}) {
  TensorJob job(ranks(2));
  uint64_t bytes = 0;
  const auto sentSoFar = [&] {
    const PeerChannels channels = job[0].channelsTo("rank1");
    return channels.unixSockets.sentBytes + channels.tcp.sentBytes + channels.lanes.sentBytes +
           channels.sharedMemory.sentBytes + channels.crossMemory.sentBytes;
  };
  job.onAll([&](Worker& worker) {
    Weights weights(shapes);
    std::vector<at::Tensor> own = gradients;
    if (own.empty())
      for (const auto& shape : shapes) own.push_back(random(shape, 7).to(at::kFloat));
    DistributedDataParallel<Weights> ddp(weights, ProcessGroup::make(worker, job.names(), {.smallBytes = 0}),
                                         {.hook = makeHook ? makeHook() : nullptr});
    averageOf(*weights, own);
    const uint64_t before = sentSoFar();
    averageOf(*weights, own);
    if (worker.self().rank == 0) bytes = sentSoFar() - before;
  });
  return bytes;
}

}  // namespace treadle::test::ddp_test

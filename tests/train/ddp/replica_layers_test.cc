// Layers whose tensors or modules are not where others have them: replicas train them as one process does.

#include <torch/nn/modules/container/moduledict.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/rnn.h>
#include <torch/optim/sgd.h>

#include <string>

#include "tests/train/ddp/tied_net.h"
#include "treadle/train/ddp/replica_set.h"

namespace treadle::test::replica_layers_test {
namespace {

using namespace tied_net;

// In float64, with the same values each time.
template <class M>
M made(M module) {
  const at::NoGradGuard noGrad;
  module->to(at::kDouble);
  uint64_t seed = 1;
  for (at::Tensor& parameter : module->parameters()) parameter.copy_(random(parameter.sizes(), seed++) / 2);
  return module;
}

// `lossOf(module, shard, step)` is the loss of a shard. The nets begin alike.
template <class M, class F>
void expectTrainsAsOneProcess(M net, M alone, F lossOf) {
  ReplicaSet<M> replicas(net, {.replicas = kShards});
  torch::optim::SGD optimizer(net->parameters(), 0.1), plain(alone->parameters(), 0.1);
  for (int step = 0; step < 4; ++step) {
    optimizer.zero_grad();
    plain.zero_grad();
    const std::vector<at::Tensor> losses =
        replicas.backward([&](auto& replica, int shard) -> at::Tensor { return lossOf(replica, shard, step); });
    for (int shard = 0; shard < kShards; ++shard) {
      const at::Tensor loss = lossOf(*alone, shard, step);
      EXPECT_TRUE(close(losses[static_cast<size_t>(shard)], loss.detach(), 1e-12)) << "step " << step;
      loss.div(kShards).backward();
    }
    expectClose(gradientsOf(net), gradientsOf(alone));
    optimizer.step();
    plain.step();
  }
}

// Each layer of libtorch's LSTM keeps a list of its weights beside its parameters.
struct RecurrentImpl : torch::nn::Cloneable<RecurrentImpl> {
  RecurrentImpl() { RecurrentImpl::reset(); }
  void reset() override {
    lstm = register_module("lstm", torch::nn::LSTM(torch::nn::LSTMOptions(5, 4).num_layers(2).bidirectional(true)));
    last = register_module("last", torch::nn::Linear(8, 2));
  }
  at::Tensor forward(const at::Tensor& input) { return last(std::get<0>(lstm(input))); }
  torch::nn::LSTM lstm = nullptr;
  torch::nn::Linear last = nullptr;
};
TORCH_MODULE(Recurrent);

TEST(ReplicaSet, TrainsAnLstm) {
  expectTrainsAsOneProcess(made(Recurrent()), made(Recurrent()), [](RecurrentImpl& net, int shard, int step) {
    return net.forward(inputOf(shard, step).view({2, 2, 5})).square().mean();
  });
}

// libtorch's clones of these containers are new ones, which are then put into the clone of the module.
struct ContainersImpl : torch::nn::Cloneable<ContainersImpl> {
  ContainersImpl() { ContainersImpl::reset(); }
  void reset() override {
    layers = register_module("layers", torch::nn::ModuleList(torch::nn::Linear(5, 5), torch::nn::Linear(5, 5)));
    using Heads = std::vector<std::pair<std::string, std::shared_ptr<torch::nn::Module>>>;
    heads = register_module("heads", torch::nn::ModuleDict(Heads{{"wide", torch::nn::Linear(5, 3).ptr()},
                                                                 {"narrow", torch::nn::Linear(5, 1).ptr()}}));
  }
  at::Tensor forward(at::Tensor input, const std::string& head) {
    for (size_t i = 0; i < layers->size(); ++i) input = at::tanh(layers->at<torch::nn::LinearImpl>(i).forward(input));
    return heads->at<torch::nn::LinearImpl>(head).forward(input);
  }
  torch::nn::ModuleList layers = nullptr;
  torch::nn::ModuleDict heads = nullptr;
};
TORCH_MODULE(Containers);

// In the last steps nobody uses the wide head.
TEST(ReplicaSet, TrainsAModuleListAndAModuleDict) {
  expectTrainsAsOneProcess(made(Containers()), made(Containers()), [](ContainersImpl& net, int shard, int step) {
    return net.forward(inputOf(shard, step), shard == 1 && step < 2 ? "wide" : "narrow").square().mean();
  });
}

torch::nn::Conv2d convolution() { return made(torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 4, 2))); }

void setFormat(const torch::nn::Conv2d& net, at::MemoryFormat format) {
  net->weight.set_data(net->weight.detach().contiguous(format));
}

// The weight gets another format before the set is made, or between two steps.
TEST(ReplicaSet, TrainsAConvolutionInChannelsLast) {
  constexpr auto kLast = at::MemoryFormat::ChannelsLast;
  for (const int changedBefore : {0, 2}) {
    const torch::nn::Conv2d net = convolution(), alone = convolution();
    if (changedBefore == 0) setFormat(net, kLast);
    expectTrainsAsOneProcess(net, alone, [&](torch::nn::Conv2dImpl& module, int shard, int step) {
      const bool isReplica = &module != alone.get();
      EXPECT_EQ(module.weight.is_contiguous(kLast), isReplica && step >= changedBefore);
      // After a step's losses were computed alone, the next step begins.
      if (!isReplica && shard == kShards - 1 && step + 1 == changedBefore) setFormat(net, kLast);
      const at::Tensor input = random({2, 3, 4, 4}, static_cast<uint64_t>(10 * step + shard));
      return module.forward(isReplica ? input.contiguous(kLast) : input).square().mean();
    });
  }
}

}  // namespace
}  // namespace treadle::test::replica_layers_test

#pragma once
// What the tests of ReplicaSet train: a small network in float64 with a tied weight, and its data by shard and step.

#include <torch/nn/cloneable.h>

#include <vector>

#include "tests/train/ddp/net.h"

namespace treadle::test::tied_net {

using namespace ddp_test;

// A layer whose weight the net has by another name too, a branch, and a buffer. A clone has two tensors for the weight.
struct LayerImpl : torch::nn::Cloneable<LayerImpl> {
  LayerImpl() { LayerImpl::reset(); }
  void reset() override { weight = register_parameter("weight", random({5, 5}, 1)); }
  at::Tensor weight;
};
TORCH_MODULE(Layer);

struct TiedNetImpl : torch::nn::Cloneable<TiedNetImpl> {
  TiedNetImpl() { TiedNetImpl::reset(); }
  void reset() override {
    layer = register_module("layer", Layer());
    again = register_parameter("again", layer->weight);
    bias = register_parameter("bias", random({5}, 2));
    skipped = register_parameter("skipped", random({5, 5}, 3));
    sum = register_buffer("sum", at::zeros({5}, at::kDouble));
    constant = register_buffer("constant", random({100}, 4));
  }
  at::Tensor forward(const at::Tensor& input, bool skip) {
    if (is_training()) {
      const at::NoGradGuard noGrad;
      sum.mul_(0.5).add_(input.sum(0));
    }
    at::Tensor hidden = at::tanh(input.mm(layer->weight) + bias);
    if (!skip) hidden = at::tanh(hidden.mm(skipped));
    return hidden.mm(again);
  }
  Layer layer = nullptr;
  at::Tensor again, bias, skipped, sum, constant;
};
TORCH_MODULE(TiedNet);

constexpr int kShards = 4;

// Some shards do not use a parameter, and in some steps none does.
inline bool skips(int shard, int step) { return step % 7 == 3 || (shard + step) % 3 == 0; }

inline at::Tensor lossOfShard(TiedNetImpl& net, int shard, int step) {
  return net.forward(inputOf(shard, step), skips(shard, step)).square().mean();
}

inline std::vector<at::Tensor> parametersOf(const TiedNet& net) {
  return {net->layer->weight, net->bias, net->skipped};
}

template <class M>
std::vector<at::Tensor> gradientsOf(const M& net) {
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& parameter : net->parameters())
    gradients.push_back(parameter.grad().defined() ? parameter.grad().clone() : at::Tensor());
  return gradients;
}

inline void expectClose(const std::vector<at::Tensor>& actual, const std::vector<at::Tensor>& expected,
                        double tolerance = 1e-12) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    ASSERT_EQ(actual[i].defined(), expected[i].defined()) << i;
    if (actual[i].defined()) {
      EXPECT_TRUE(close(actual[i], expected[i], tolerance)) << i;
    }
  }
}

// Equal bits, and undefined where the other is.
inline void expectSame(const std::vector<at::Tensor>& actual, const std::vector<at::Tensor>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    ASSERT_EQ(actual[i].defined(), expected[i].defined()) << i;
    if (actual[i].defined()) {
      EXPECT_TRUE(haveEqualBits(actual[i], expected[i])) << i;
    }
  }
}

}  // namespace treadle::test::tied_net

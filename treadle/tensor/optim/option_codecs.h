#pragma once
// The option structs of libtorch's optimizers as values that travel. libtorch's own serialization is not
// used: it unpickles. Values are not checked here: the optimizer's constructor does that at the owner, and
// what it throws comes back. Without state; any thread.

#include <torch/optim/adam.h>
#include <torch/optim/sgd.h>

#include "treadle/core/rpc/codec.h"

namespace treadle::rpc {

// lr, momentum, dampening, weight decay: f64; nesterov: u8.
template <>
struct Codec<torch::optim::SGDOptions> {
  using Options = torch::optim::SGDOptions;
  using Values = std::tuple<double, double, double, double, bool>;
  static void encode(Encoder& encoder, const Options& o) {
    Codec<Values>::encode(encoder, {o.lr(), o.momentum(), o.dampening(), o.weight_decay(), o.nesterov()});
  }
  static Options decode(Decoder& decoder) {
    auto [lr, momentum, dampening, weightDecay, nesterov] = Codec<Values>::decode(decoder);
    return Options(lr).momentum(momentum).dampening(dampening).weight_decay(weightDecay).nesterov(nesterov);
  }
  static std::string name() { return "SGDOptions"; }
};

// lr, beta1, beta2, eps, weight decay: f64; amsgrad: u8.
template <>
struct Codec<torch::optim::AdamOptions> {
  using Options = torch::optim::AdamOptions;
  using Values = std::tuple<double, double, double, double, double, bool>;
  static void encode(Encoder& encoder, const Options& o) {
    auto [beta1, beta2] = o.betas();
    Codec<Values>::encode(encoder, {o.lr(), beta1, beta2, o.eps(), o.weight_decay(), o.amsgrad()});
  }
  static Options decode(Decoder& decoder) {
    auto [lr, beta1, beta2, eps, weightDecay, amsgrad] = Codec<Values>::decode(decoder);
    return Options(lr).betas({beta1, beta2}).eps(eps).weight_decay(weightDecay).amsgrad(amsgrad);
  }
  static std::string name() { return "AdamOptions"; }
};

}  // namespace treadle::rpc

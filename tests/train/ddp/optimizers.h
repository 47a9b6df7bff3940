#pragma once
// What tests of optimizers beside DistributedDataParallel share: options that use all fields of their state, and that
// state.

#include <gtest/gtest.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <vector>

#include "treadle/tensor/optim/state_fields.h"

namespace treadle::test::ddp_test {

template <class Optimizer>
struct OptimizerWith;
template <>
struct OptimizerWith<torch::optim::SGD> {
  static auto options() { return torch::optim::SGDOptions(0.01).momentum(0.9).weight_decay(0.1); }
};
template <>
struct OptimizerWith<torch::optim::Adam> {
  static auto options() { return torch::optim::AdamOptions(0.01).amsgrad(true); }
};
template <>
struct OptimizerWith<torch::optim::AdamW> {
  static auto options() { return torch::optim::AdamWOptions(0.01); }
};
template <>
struct OptimizerWith<torch::optim::Adagrad> {
  static auto options() { return torch::optim::AdagradOptions(0.01); }
};
template <>
struct OptimizerWith<torch::optim::RMSprop> {
  static auto options() { return torch::optim::RMSpropOptions(0.01).momentum(0.9).centered(true); }
};

using AllOptimizers = ::testing::Types<torch::optim::SGD, torch::optim::Adam, torch::optim::AdamW,
                                       torch::optim::Adagrad, torch::optim::RMSprop>;

// The fields of the state of each parameter, one after the other; undefined where there is no tensor.
template <class Optimizer>
std::vector<at::Tensor> fieldsOf(Optimizer& optimizer, const std::vector<at::Tensor>& parameters) {
  using State = typename optim::StateOf<Optimizer>::type;
  std::vector<at::Tensor> fields;
  for (const at::Tensor& parameter : parameters) {
    const auto found = optimizer.state().find(parameter.unsafeGetTensorImpl());
    State none;
    State& state = found == optimizer.state().end() ? none : static_cast<State&>(*found->second);
    optim::Fields<State>::each(
        state, [&](const char*, const auto& field, auto...) { fields.push_back(optim::asTensor(field)); });
  }
  return fields;
}

}  // namespace treadle::test::ddp_test

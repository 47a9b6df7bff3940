// What nested modules have, as a value that travels.

#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <treadle/nn.h>

#include "tests/support/expect_error.h"
#include "tests/support/tensor_job.h"

namespace treadle::test::module_state_test {
namespace {

struct NetImpl : torch::nn::Module {
  NetImpl() {
    body = register_module("body", torch::nn::Sequential(torch::nn::Linear(3, 4), torch::nn::BatchNorm1d(4)));
    head = register_module("head", torch::nn::Linear(torch::nn::LinearOptions(4, 2).bias(false)));
  }
  torch::nn::Sequential body{nullptr};
  torch::nn::Linear head{nullptr};
};
TORCH_MODULE(Net);

// Loads what it is given into a module of its own, and gives that back.
ModuleState throughAnother(const ModuleState& state) {
  Net net;
  loadState(*net, state);
  return stateOf(*net);
}

void expectSame(const ModuleState& one, const ModuleState& other) {
  ASSERT_EQ(one.size(), other.size());
  for (const auto& [name, tensor] : one) EXPECT_TRUE(close(tensor, other.at(name), 0)) << name;
}

TEST(ModuleState, hasTheNamesOfNestedModulesAndTravels) {
  Net net;
  ModuleState state = stateOf(*net);
  for (const char* name :
       {"body.0.weight", "body.0.bias", "body.1.running_mean", "body.1.num_batches_tracked", "head.weight"})
    EXPECT_EQ(1U, state.count(name)) << name;
  EXPECT_EQ(0U, state.count("head.bias")) << "it has none";
  for (const auto& [name, tensor] : state) EXPECT_FALSE(tensor.requires_grad());
  TensorJob job({"a", "b"}, Functions().add<&throughAnother>("throughAnother"));
  expectSame(state, job[0].call<&throughAnother>("b", state));
}

TEST(ModuleState, isLoadedWholeOrNotAtAll) {
  Net net, other;
  const ModuleState before = throughAnother(stateOf(*net));
  const auto refused = [&](auto change) {
    ModuleState state = stateOf(*other);
    change(state);
    const std::string why = messageOf<ArgumentError>([&] { loadState(*net, state); });
    expectSame(before, stateOf(*net));
    return why;
  };
  EXPECT_TRUE(contains(refused([](ModuleState& state) { state.erase("head.weight"); }), "has no 'head.weight'"));
  EXPECT_TRUE(contains(refused([](ModuleState& state) { state["tail"] = at::ones({1}); }), "has no 'tail'"));
  EXPECT_TRUE(contains(refused([](ModuleState& state) { state["head.weight"] = at::ones({2, 5}); }), "[2, 5]"));
  EXPECT_TRUE(contains(refused([](ModuleState& state) { state["head.weight"] = at::Tensor(); }), "no tensor"));
  const auto sparse = [](ModuleState& state) { state["head.weight"] = state["head.weight"].to_sparse(); };
  EXPECT_TRUE(contains(refused(sparse), "Sparse"));
  loadState(*net, stateOf(*other));
  expectSame(stateOf(*other), stateOf(*net));
  EXPECT_TRUE(net->head->weight.requires_grad()) << "it is the parameter still";
}

}  // namespace
}  // namespace treadle::test::module_state_test

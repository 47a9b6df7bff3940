// RemoteModule: modules made and used on another worker as if they were here.

#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/rnn.h>
#include <treadle/nn.h>

#include "tests/support/gate.h"
#include "tests/support/tensor_job.h"

namespace treadle::test::remote_module_test {
namespace {

torch::nn::EmbeddingBag makeBag(int64_t rows, int64_t width) {
  torch::nn::EmbeddingBag bag(torch::nn::EmbeddingBagOptions(rows, width).mode(torch::kSum));
  bag->to(torch::kFloat64);
  torch::NoGradGuard noGradients;
  bag->weight.copy_(at::arange(rows * width, at::kDouble).reshape({rows, width}));
  return bag;
}

torch::nn::Linear makeBroken(const std::string& why) { throw std::runtime_error(why); }

// A module of a program: arguments of several types, some with defaults, and a buffer.
struct ScalerImpl : torch::nn::Module {
  ScalerImpl(int32_t size, double scale, const std::string& label) : label(label) {
    weight = register_parameter("weight", at::full({size}, scale, at::kDouble));
    calls = register_buffer("calls", at::zeros({}, at::kLong));
  }
  at::Tensor forward(const at::Tensor& x, double factor = 2, bool negate = false) {
    calls += 1;
    at::Tensor y = x * weight * factor;
    return negate ? -y : y;
  }
  std::string label;
  at::Tensor weight, calls;
};
TORCH_MODULE(Scaler);

// Two makers of one class.
torch::nn::Embedding makeRow(int64_t width) { return torch::nn::Embedding(1, width); }
torch::nn::Embedding makeColumn(int64_t rows) { return torch::nn::Embedding(rows, 1); }

struct PairImpl : torch::nn::Module {
  std::vector<at::Tensor> forward(const std::vector<at::Tensor>& xs) {
    if (!is_training()) return {};
    return {xs.at(0) + xs.at(1), xs.at(0) - xs.at(1)};
  }
};

at::Tensor useThere(const RemoteModule<Scaler>& gate, const at::Tensor& x) { return gate.forward(x, 3.0); }

Functions functions() {
  Functions functions;
  addModule<&makeBag>(functions, "Bag");
  addModule<&makeBroken>(functions, "Broken");
  addModule<Scaler, int32_t, double, std::string>(functions, "Scaler");
  addModule<PairImpl>(functions, "Pair");
  addModule<&makeRow>(functions, "Row");
  addModule<&makeColumn>(functions, "Column");
  functions.add<&useThere>("useThere");
  return functions;
}

class RemoteModules : public ::testing::Test {
 protected:
  TensorJob job{{"A", "B", "C"}, functions()};
  Worker& a = job[0];
};

const at::Tensor kX = at::tensor({1.0, 2.0}, at::kDouble);

TEST_F(RemoteModules, AFactoryMakesThemAndDefaultsOfForwardApply) {
  RemoteModule<torch::nn::EmbeddingBag> bag(a, "B", 10, 4);
  EXPECT_EQ(bag.owner().name, "B");
  EXPECT_EQ(bag.name(), "Bag");
  torch::nn::EmbeddingBag local = makeBag(10, 4);
  at::Tensor rows = at::tensor({1, 2, 3, 7, 7, 9}, at::kLong).view({2, 3}), flat = at::tensor({4, 5, 6, 0}, at::kLong);
  at::Tensor offsets = at::tensor({0, 3}, at::kLong);
  EXPECT_TRUE(close(bag.forward(rows), local(rows).detach()));
  EXPECT_TRUE(close(bag.forward(flat, offsets), local(flat, offsets).detach()));
  EXPECT_TRUE(close(bag.forwardAsync(rows).wait(), local(rows).detach()));
}

TEST_F(RemoteModules, AnAsynchronousForwardTakesPartInAPass) {
  RemoteModule<Scaler> scaler(a, "B", 2, 3.0, "");
  at::Tensor x = kX.clone().requires_grad_();
  AutogradContext context(a);
  Future<at::Tensor> first = scaler.forwardAsync(x), second = scaler.forwardAsync(x * x, 1.0);
  context.backward({first.wait().sum() + second.wait().sum()});
  EXPECT_TRUE(close(context.gradient(x), 6 + 6 * kX));
}

TEST(RemoteModuleArguments, AreReadWhereTheyLieWhileTheCallerWaits) {
  TensorJob job({"A", "B"}, functions(), {},
                [](JoinOptions& options) { options.channels = Channels{.sharedMemory = false}; });
  RemoteModule<Scaler> scaler(job[0], "B", 1, 3.0, "");
  const at::Tensor large = at::ones({1 << 19}, at::kDouble);
  const auto readThere = [&] { return job[0].channelsTo("B").crossMemory.sentBytes; };
  // The workers must first try whether the system allows it.
  EXPECT_TRUE(test::eventually([&] {
    EXPECT_TRUE(close(scaler.forward(large), large * 6));
    return readThere() > 0;
  }));
  const uint64_t before = readThere();
  EXPECT_TRUE(close(scaler.forward(large, 1.0), large * 3));
  EXPECT_EQ(before + large.nbytes(), readThere());
}

TEST_F(RemoteModules, TheImplIsTheSameModuleAsItsHolder) {
  RemoteModule<torch::nn::EmbeddingBagImpl> bag(a, "B", 10, 4);
  EXPECT_EQ(bag.forward(at::tensor({1, 2}, at::kLong).view({1, 2})).sizes(), (std::vector<int64_t>{1, 4}));
}

TEST_F(RemoteModules, AConstructorMakesThemFromLooseArguments) {
  RemoteModule<Scaler> gate(a, "B", 2, 5, "a label");
  EXPECT_TRUE(close(gate.forward(kX), kX * 10));
  EXPECT_TRUE(close(gate.forward(kX, 1), kX * 5));
  EXPECT_TRUE(close(gate.forward(kX, 1.0, true), kX * -5));
}

TEST_F(RemoteModules, TheyMayLiveOnTheOwnWorker) {
  RemoteModule<Scaler> gate(a, "A", 2, 5.0, "here");
  EXPECT_TRUE(close(gate.forward(kX), kX * 10));
  EXPECT_EQ(gate.moduleRef().localValue().label, "here");
}

TEST_F(RemoteModules, AWrongNumberOfArgumentsIsToldByTheOwner) {
  RemoteModule<Scaler> gate(a, "B", 2, 5.0, "");
  EXPECT_TRUE(contains(messageOf<ArgumentError>([&] { gate.forward(); }), "0 arguments"));
  EXPECT_TRUE(close(gate.forward(kX), kX * 10)) << "the connection goes on";
}

TEST_F(RemoteModules, TrainAndEvalReachTheModule) {
  RemoteModule<PairImpl> pair(a, "B");
  std::vector<at::Tensor> xs = {kX, kX * 3};
  auto sums = pair.forward(xs);
  ASSERT_EQ(sums.size(), 2u);
  EXPECT_TRUE(close(sums[1], kX * -2));
  pair.eval();
  EXPECT_TRUE(pair.forward(xs).empty());
  pair.train();
  EXPECT_EQ(pair.forward(xs).size(), 2u);
}

TEST_F(RemoteModules, ParametersAreReferencesToThoseOfTheModule) {
  RemoteModule<Scaler> gate(a, "B", 2, 5.0, "");
  auto parameters = gate.remoteParameters();
  ASSERT_EQ(parameters.size(), 1u);
  EXPECT_EQ(parameters[0].owner().name, "B");
  EXPECT_TRUE(close(parameters[0].toHere().detach(), at::full({2}, 5.0, at::kDouble)));
  EXPECT_TRUE(RemoteModule<PairImpl>(a, "B").remoteParameters().empty());
}

TEST_F(RemoteModules, BuffersAreReferencesToThoseOfTheModule) {
  RemoteModule<Scaler> gate(a, "B", 2, 5.0, "");
  gate.forward(kX);
  gate.forward(kX);
  auto buffers = gate.remoteBuffers();
  ASSERT_EQ(buffers.size(), 1u);
  EXPECT_EQ(buffers[0].owner().name, "B");
  EXPECT_EQ(buffers[0].toHere().item<int64_t>(), 2);
}

TEST_F(RemoteModules, TheStateIsACopyAndIsLoadedWhole) {
  for (const char* owner : {"A", "B"}) {
    RemoteModule<Scaler> gate(a, owner, 2, 5.0, ""), other(a, "C", 2, 7.0, "");
    gate.forward(kX);
    ModuleState state = gate.state();
    gate.load(other.state());
    EXPECT_TRUE(close(state.at("weight"), at::full({2}, 5.0, at::kDouble))) << "a copy";
    EXPECT_EQ(state.at("calls").item<int64_t>(), 1);
    EXPECT_TRUE(close(gate.forward(kX), kX * 14));
    state["weight"] = at::ones({3}, at::kDouble);
    EXPECT_TRUE(contains(messageOf<ArgumentError>([&] { gate.load(state); }), "'weight'"));
    EXPECT_EQ(gate.state().at("calls").item<int64_t>(), 1) << "what the other had, and a forward";
  }
}

// In FAST mode each tensor that was sent within the context must get a gradient.
TEST_F(RemoteModules, OnlyForwardIsPartOfAGraph) {
  RemoteModule<Scaler> gate(a, "B", 2, 5.0, "");
  AutogradContext context(a, {AutogradMode::kFast});
  ModuleState state = gate.state();
  state["weight"] = at::full({2}, 3.0, at::kDouble).requires_grad_();
  gate.load(state);
  at::Tensor x = kX.clone().requires_grad_();
  context.backward({gate.forward(x).sum()});
  EXPECT_TRUE(close(context.gradient(x), at::full({2}, 6.0, at::kDouble)));
}

TEST_F(RemoteModules, AreConvertedAtTheirOwner) {
  RemoteModule<Scaler> gate(a, "B", 2, 5.0, "");
  auto weight = gate.remoteParameters().at(0);
  gate.to(torch::kFloat32);
  EXPECT_EQ(weight.toHere().scalar_type(), at::kFloat) << "the reference is to the parameter still";
  at::Tensor x = kX.to(at::kFloat).requires_grad_();
  AutogradContext context(a);
  context.backward({gate.forward(x).sum()});
  EXPECT_TRUE(close(context.gradient(x), at::full({2}, 10.0F)));
  gate.to(torch::kCPU);
  EXPECT_TRUE(contains(messageOf<ArgumentError>([&] { gate.to(torch::kInt64); }), "floating"));
  EXPECT_THROW(gate.to(at::Device("cuda:99")), RemoteError);
  EXPECT_EQ(gate.forward(x).scalar_type(), at::kFloat) << "it goes on";
}

TEST_F(RemoteModules, TravelToOtherWorkersAndCarryGradients) {
  RemoteModule<Scaler> gate(a, "B", 2, 5.0, "");
  at::Tensor x = kX.clone().requires_grad_();
  {
    AutogradContext context(a);
    context.backward({a.call<&useThere>("C", gate, x).sum()});
    EXPECT_TRUE(close(context.gradient(x), at::full({2}, 15.0, at::kDouble)));
  }
  EXPECT_TRUE(test::eventuallyReleased([&] { return job.openContexts() == 0; }));
}

TEST_F(RemoteModules, OneOfSeveralNamesMustBePicked) {
  std::string why = messageOf<ArgumentError>([&] { RemoteModule<torch::nn::Embedding>(a, "B", 3); });
  EXPECT_TRUE(contains(why, "'Row'") && contains(why, "'Column'"));
  for (const std::string name : {"Row", "Column"}) {
    RemoteModule<torch::nn::Embedding> picked(a, "B", ModuleName{name}, 3);
    EXPECT_EQ(picked.name(), name);
    EXPECT_EQ(picked.forward(at::tensor({0, 0}, at::kLong)).size(1), name == "Row" ? 3 : 1);
    EXPECT_EQ(picked.remoteParameters().front().toHere().numel(), 3);
    picked.eval();
  }
}

// ---- what cannot be made or used

TEST_F(RemoteModules, AModuleWithoutANameHereIsRefused) {
  EXPECT_TRUE(contains(messageOf<StateError>([&] { RemoteModule<Scaler>(a, "B", ModuleName{"Scalar"}, 2, 5.0, ""); }),
                       "'Scalar'"));
  std::string why = messageOf<StateError>([&] { RemoteModule<torch::nn::LSTMCell> none(a, "B", 1, 2); });
  EXPECT_TRUE(contains(why, "LSTMCell"));
}

TEST_F(RemoteModules, ArgumentsOfOtherTypesAreRefusedHere) {
  EXPECT_TRUE(contains(messageOf<ArgumentError>([&] { RemoteModule<Scaler>(a, "B", "two", 5.0, ""); }), "Scaler"));
  messageOf<ArgumentError>([&] { RemoteModule<Scaler>(a, "B", 2, 5.0); });
}

TEST_F(RemoteModules, ANumberThatDoesNotFitIsRefusedByTheOwner) {
  RemoteModule<Scaler> gate(a, "B", int64_t{1} << 40, 5.0, "");
  EXPECT_TRUE(contains(messageOf<Error>([&] { gate.forward(kX); }), std::to_string(int64_t{1} << 40)));
}

TEST_F(RemoteModules, WhatTheFactoryThrewIsTold) {
  RemoteModule<torch::nn::Linear> broken(a, "B", "no weights in stock");
  EXPECT_TRUE(contains(messageOf<RemoteError>([&] { broken.forward(kX); }), "no weights in stock"));
  EXPECT_TRUE(contains(messageOf<RemoteError>([&] { broken.remoteParameters(); }), "no weights in stock"));
}

TEST_F(RemoteModules, OneThatRefersToNothingSaysSo) {
  RemoteModule<Scaler> nothing;
  EXPECT_TRUE(contains(messageOf<StateError>([&] { nothing.forward(kX); }), "nothing"));
  EXPECT_THROW(a.call<&useThere>("C", nothing, kX), ArgumentError);
}

TEST_F(RemoteModules, AWorkerWhereItWasNotAddedSaysSo) {
  Functions user;
  declareModule<Scaler, int32_t, double, std::string>(user, "Scaler");
  declareModule<&makeBag>(user, "Bag");
  TensorJob other({"A", "B"}, user);
  RemoteModule<Scaler> gate(other[0], "B", 2, 5.0, "");
  std::string why = messageOf<NotFoundError>([&] { gate.forward(kX); });
  EXPECT_TRUE(contains(why, "Scaler"));
}

}  // namespace
}  // namespace treadle::test::remote_module_test

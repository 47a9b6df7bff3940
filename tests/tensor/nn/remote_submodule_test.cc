// Modules whose parts live on several workers: each is one module, for parameters, state, train and to.

#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <treadle/nn.h>
#include <treadle/optim.h>

#include "tests/support/gate.h"
#include "tests/support/tensor_job.h"

namespace treadle::test::remote_submodule_test {
namespace {

using torch::nn::Linear;

Linear makeLinear(int64_t in, int64_t out) { return Linear(in, out); }

// Lives on one worker, and what is below it on another. Its buffer says what mode it was last used in.
struct TowerImpl : torch::nn::Module {
  explicit TowerImpl(const RemoteModule<Linear>& below)
      : below(register_module("below", RemoteSubmodule<Linear>(below))),
        top(register_module("top", Linear(4, 4))),
        trained(register_buffer("trained", at::zeros({1}))) {}
  at::Tensor forward(const at::Tensor& x) {
    trained.fill_(is_training() ? 1 : 0);
    return top(below->forward(x)).tanh();
  }
  RemoteSubmodule<Linear> below;
  Linear top;
  at::Tensor trained;
};
TORCH_MODULE(Tower);

// The whole model: a part here, and a tower that is elsewhere.
struct ModelImpl : torch::nn::Module {
  explicit ModelImpl(const RemoteModule<Tower>& there)
      : tower(register_module("tower", RemoteSubmodule<Tower>(there))), head(register_module("head", Linear(4, 1))) {}
  at::Tensor forward(const at::Tensor& x) { return head(tower->forward(x)); }
  RemoteSubmodule<Tower> tower;
  Linear head;
};
TORCH_MODULE(Model);

// The same in one process.
struct AloneImpl : torch::nn::Module {
  struct TowerHere : torch::nn::Module {
    Linear below = register_module("below", Linear(3, 4)), top = register_module("top", Linear(4, 4));
    at::Tensor trained = register_buffer("trained", at::zeros({1}));
  };
  std::shared_ptr<TowerHere> tower = register_module("tower", std::make_shared<TowerHere>());
  Linear head = register_module("head", Linear(4, 1));
  at::Tensor forward(const at::Tensor& x) {
    tower->trained.fill_(1);
    return head(tower->top(tower->below(x)).tanh());
  }
};

RRef<torch::nn::LinearImpl> ownLinear(CallContext& call) { return call.worker().makeRRef(Linear(3, 4).ptr()); }

class RemoteSubmodules : public ::testing::Test {
 protected:
  static Functions functions() {
    Functions functions;
    addModule<&makeLinear>(functions, "Linear");
    addModule<Tower, RemoteModule<Linear>>(functions, "Tower");
    return functions.add<&ownLinear>("ownLinear");
  }
  static std::vector<std::string> ownersOf(const std::vector<RRef<at::Tensor>>& references) {
    std::vector<std::string> owners;
    for (const auto& reference : references) owners.push_back(reference.owner().name);
    return owners;
  }
  static void expectSame(const ModuleState& one, const ModuleState& other, double tolerance) {
    ASSERT_EQ(one.size(), other.size());
    for (const auto& [name, tensor] : one) EXPECT_TRUE(close(tensor, other.at(name), tolerance)) << name;
  }

  TensorJob job{{"A", "B", "C"}, functions()};
  Worker& a = job[0];
  Model model{RemoteModule<Tower>(a, "B", RemoteModule<Linear>(a, "C", 3, 4))};
  const at::Tensor x = at::arange(6, at::kFloat).reshape({2, 3}) / 6;
};

TEST_F(RemoteSubmodules, GiveTheParametersOfAllOwnersToAnOptimizer) {
  auto parameters = parameterRefs(a, *model);
  EXPECT_EQ(ownersOf(parameters), (std::vector<std::string>{"C", "C", "B", "B", "A", "A"}));
  EXPECT_EQ(ownersOf(model->tower->remoteParameters()), (std::vector<std::string>{"C", "C", "B", "B"}));
  EXPECT_EQ(ownersOf(model->tower->remoteBuffers()), (std::vector<std::string>{"B"}));
  AloneImpl alone;
  loadState(alone, stateOf(*model));
  auto optimizer = DistributedOptimizer::make<torch::optim::SGD>(a, parameters, torch::optim::SGDOptions(0.1));
  torch::optim::SGD local(alone.parameters(), torch::optim::SGDOptions(0.1));
  for (int number = 0; number < 3; ++number) {
    AutogradContext context(a);
    context.backward({model->forward(x).pow(2).sum()});
    optimizer.step();
    local.zero_grad();
    alone.forward(x).pow(2).sum().backward();
    local.step();
  }
  expectSame(stateOf(*model), stateOf(alone), 1e-5);
}

TEST_F(RemoteSubmodules, HaveTheirStateInThatOfTheWhole) {
  ModuleState state = stateOf(*model);
  for (const char* name : {"tower.below.weight", "tower.below.bias", "tower.top.weight", "tower.trained", "head.bias"})
    EXPECT_EQ(state.count(name), 1U) << name;
  AloneImpl other;
  ModuleState lacking = stateOf(other);
  lacking.erase("tower.below.bias");
  EXPECT_TRUE(contains(messageOf<ArgumentError>([&] { loadState(*model, lacking); }), "'tower.below.bias'"));
  state["head.bias"] = model->head->bias.detach().clone();
  expectSame(stateOf(*model), state, 0);
  loadState(*model, stateOf(other));
  expectSame(stateOf(*model), stateOf(other), 0);
  model->tower->load(RemoteModule<Tower>(a, "C", RemoteModule<Linear>(a, "B", 3, 4)).state());
  EXPECT_FALSE(at::equal(stateOf(*model).at("tower.below.weight"), other.tower->below->weight.detach()));
}

TEST_F(RemoteSubmodules, FollowTheWholeInTrainEvalAndTo) {
  EXPECT_EQ(model->forward(x).sizes(), (std::vector<int64_t>{2, 1}));
  EXPECT_EQ(stateOf(*model).at("tower.trained").item<float>(), 1);
  model->eval();
  model->forward(x);
  EXPECT_EQ(stateOf(*model).at("tower.trained").item<float>(), 0);
  model->to(torch::kFloat64);
  for (const auto& [name, tensor] : stateOf(*model)) EXPECT_EQ(tensor.scalar_type(), at::kDouble) << name;
  EXPECT_EQ(model->forward(x.to(at::kDouble)).scalar_type(), at::kDouble);
  model->to(torch::kCPU);
  model->to(torch::kCPU, torch::kFloat32);
  EXPECT_EQ(model->forward(x).scalar_type(), at::kFloat);
}

TEST_F(RemoteSubmodules, MayBeReferencesToModules) {
  auto owned = a.call<&ownLinear>("C");
  RemoteSubmodule<Linear> linear(a, owned);
  EXPECT_EQ(linear->remoteModule().name(), "Linear");
  EXPECT_EQ(ownersOf(parameterRefs(a, *linear)), (std::vector<std::string>{"C", "C"}));
  EXPECT_TRUE(close(linear->forward(x), RemoteModule<Linear>(a, owned).forward(x)));
  EXPECT_TRUE(close(linear->forwardAsync(x).wait(), linear->forward(x)));
}

// Tied: there under two names, and once.
TEST_F(RemoteSubmodules, GiveEachParameterOnce) {
  RemoteSubmodule<Linear> linear(a, a.call<&ownLinear>("C"));
  torch::nn::Module tied;
  tied.register_module("one", linear.ptr());
  tied.register_module("other", linear.ptr());
  torch::nn::Linear own(2, 2);
  tied.register_module("own", own);
  tied.register_parameter("shared", own->weight);
  EXPECT_EQ(ownersOf(parameterRefs(a, tied)).size(), 4U);
}

// One module of C, by itself, below B's tower and under two references; and one of A that comes back by way of C.
TEST_F(RemoteSubmodules, GiveEachParameterOnceWhereSeveralRemoteModulesHoldIt) {
  const RemoteModule<Linear> shared(a, "C", 3, 4);
  Linear own(3, 4);
  torch::nn::Module all;
  all.register_module("shared", RemoteSubmodule<Linear>(shared));
  all.register_module("again", RemoteSubmodule<Linear>(shared));
  all.register_module("below", RemoteSubmodule<Tower>(RemoteModule<Tower>(a, "B", shared)));
  all.register_module("own", own);
  const RemoteModule<Linear> reference(a, a.makeRRef(own.ptr()));
  all.register_module("back", RemoteSubmodule<Tower>(RemoteModule<Tower>(a, "C", reference)));
  const auto parameters = parameterRefs(a, all);
  EXPECT_EQ(ownersOf(parameters), (std::vector<std::string>{"C", "C", "B", "B", "A", "A", "C", "C"}));
  EXPECT_NO_THROW(DistributedOptimizer::make<torch::optim::SGD>(a, parameters, torch::optim::SGDOptions(0.1)));
  EXPECT_EQ(parameters.at(4).localValue().unsafeGetTensorImpl(), own->weight.unsafeGetTensorImpl());
}

TEST(FirstOfEachTensor, AnswersThatAreNoneAreRefused) {
  EXPECT_EQ(nn::checkedFirsts({0, 2}, 3), (std::vector<int64_t>{0, 2}));
  for (const std::vector<int64_t>& answer : {std::vector<int64_t>{}, {-1}, {1}, {0, 0}, {0, 2, 1}, {0, 3}})
    EXPECT_THROW(nn::checkedFirsts(answer, 3), DataError);
}

}  // namespace
}  // namespace treadle::test::remote_submodule_test

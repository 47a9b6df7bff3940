// The replicas of a module in one process compute as the module would at the moment, and have tensors of their own.

#include "treadle/train/ddp/replica_set.h"

#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>

#include <map>
#include <memory>
#include <optional>
#include <string>

#include "tests/support/expect_error.h"
#include "tests/train/ddp/tied_net.h"

namespace treadle::test::replica_clones_test {
namespace {

using namespace tied_net;

TEST(ReplicaSet, FollowsWhatIsFrozenAndTrained) {
  TiedNet net, alone;
  net->bias.set_requires_grad(false);
  ReplicaSet<TiedNet> replicas(net, {.replicas = 2});
  for (const bool isTrained : {false, true, false}) {
    for (TiedNet one : {net, alone}) {
      one->zero_grad();
      one->bias.set_requires_grad(isTrained);
    }
    replicas.backward([&](TiedNetImpl& replica, int index) { return lossOfShard(replica, index, 0); });
    for (int shard = 0; shard < 2; ++shard) lossOfShard(*alone, shard, 0).div(2).backward();
    EXPECT_EQ(net->bias.grad().defined(), isTrained);
    expectClose(gradientsOf(net), gradientsOf(alone));
  }
}

// As a program does that loads a state by set_data.
TEST(ReplicaSet, SeesOtherMemoryOfAParameter) {
  TiedNet net, alone;
  ReplicaSet<TiedNet> replicas(net, {.replicas = 2});
  for (TiedNet one : {net, alone}) one->bias.set_data(at::full({5}, 0.25, at::kDouble));
  replicas.backward([&](TiedNetImpl& replica, int index) { return lossOfShard(replica, index, 0); });
  for (int shard = 0; shard < 2; ++shard) lossOfShard(*alone, shard, 0).div(2).backward();
  expectClose(gradientsOf(net), gradientsOf(alone));
}

// A hidden state that was not detached: its graph has saved weights from before the step.
TEST(ReplicaSet, NoticesThatAKeptGraphHasOldWeights) {
  TiedNet net;
  ReplicaSet<TiedNet> replicas(net, {.replicas = 1});
  at::Tensor hidden = inputOf(0, 0);
  auto kept = [&] {
    replicas.backward([&](TiedNetImpl& replica, int) { return hidden.mm(replica.layer->weight).sum(); });
  };
  replicas.backward([&](TiedNetImpl& replica, int) {
    hidden = hidden.mm(replica.layer->weight).mm(replica.skipped);
    return replica.bias.sum();
  });
  {
    const at::NoGradGuard noGrad;
    net->skipped.mul_(2);
  }
  EXPECT_TRUE(contains(messageOf<RemoteError>(kept), "modified by an inplace operation"));
}

TEST(ReplicaSet, FollowsTheModesOfModules) {
  torch::nn::Sequential net(torch::nn::Linear(2, 2), torch::nn::Dropout(0.5));
  ReplicaSet<torch::nn::Sequential> replicas(net, {.replicas = 2});
  for (const bool isTraining : {false, true})
    for (const bool drops : {false, true}) {
      net->train(isTraining);
      net->ptr(1)->train(drops);
      replicas.backward([&](torch::nn::SequentialImpl& replica, int) {
        EXPECT_EQ(replica.is_training(), isTraining);
        EXPECT_EQ(replica.ptr(0)->is_training(), isTraining);
        EXPECT_EQ(replica.ptr(1)->is_training(), drops);
        return replica.forward(at::ones({1, 2})).sum();
      });
    }
}

// A clone of a Sequential has numbers in place of these names.
TEST(ReplicaSet, FindsTheModulesOfASequentialByTheirPlaces) {
  torch::nn::Sequential net(
      {{"1", torch::nn::Linear(3, 3)}, {"0", torch::nn::Linear(3, 3)}, {"last", torch::nn::Tanh()}});
  net->to(at::kDouble);
  const auto alone = std::dynamic_pointer_cast<torch::nn::SequentialImpl>(net->clone());
  ReplicaSet<torch::nn::Sequential> replicas(net, {.replicas = 2});
  const at::Tensor input = random({4, 3}, 1);
  replicas.backward([&](torch::nn::SequentialImpl& replica, int index) {
    return replica.forward(input.narrow(0, 2 * index, 2)).square().mean();
  });
  alone->forward(input).square().mean().backward();
  expectClose(gradientsOf(net), gradientsOf(alone));
}

// Registers its own tensors by its constructor, so that a clone has those of the module.
struct BaseImpl : torch::nn::Cloneable<BaseImpl> {
  void reset() override { weight = register_parameter("weight", at::ones({2})); }
  at::Tensor weight;
};
struct DerivedImpl : BaseImpl {};

// Its clone ties what the module does not.
struct UntiedImpl : torch::nn::Cloneable<UntiedImpl> {
  UntiedImpl() {
    register_parameter("first", at::ones({2}));
    register_parameter("second", at::ones({2}));
  }
  void reset() override { register_parameter("second", register_parameter("first", at::ones({2}))); }
};

// Its clone is what `how` says, with one weight and one buffer.
struct OddImpl : torch::nn::Module {
  explicit OddImpl(std::string how = "") : how(std::move(how)) {
    register_parameter("weight", at::ones({2}));
    register_buffer("table", at::ones({2}));
  }
  std::shared_ptr<torch::nn::Module> clone(const std::optional<at::Device>&) const override {
    if (how == "none") return nullptr;
    if (how == "copy") return std::make_shared<OddImpl>(*this);
    if (how == "cached") return cached;
    auto odd = std::make_shared<OddImpl>();
    if (how == "larger") odd->register_parameter("more", at::ones({2}));
    if (how == "buffer") odd->named_buffers()["table"].set_data(at::ones({3}));
    if (how == "submodule") odd->register_module("more", std::make_shared<OddImpl>());
    return odd;
  }
  std::string how;
  std::shared_ptr<OddImpl> cached;
};

TEST(ReplicaSet, RefusesClonesThatShareOrDiffer) {
  for (const auto& [how, message] :
       std::map<std::string, std::string>{{"none", "returned nothing"},
                                          {"copy", "of a clone is that of the module or of another clone"},
                                          {"cached", "of a clone is that of the module or of another clone"},
                                          {"larger", "2 parameters where its module has 1"},
                                          {"buffer", "buffer 'table' is another one in the clone"},
                                          {"submodule", "different numbers of submodules"}}) {
    auto odd = std::make_shared<OddImpl>(how);
    odd->cached = std::make_shared<OddImpl>();
    EXPECT_TRUE(contains(messageOf<ArgumentError>([&] { ReplicaSet<OddImpl>{odd, {.replicas = 2}}; }), message)) << how;
  }
  ReplicaSet<OddImpl>{std::make_shared<OddImpl>(), {.replicas = 2}};
}

TEST(ReplicaSet, RefusesModulesThatHaveNoRightClone) {
  auto refusalOf = [](auto module) {
    using M = typename decltype(module)::element_type;
    return messageOf<ArgumentError>([&] { ReplicaSet<M>{module, {.replicas = 2}}; });
  };
  EXPECT_TRUE(contains(refusalOf(std::make_shared<NetImpl>(0)), "clone() has not been implemented for"));
  auto derived = std::make_shared<DerivedImpl>();
  derived->reset();
  EXPECT_TRUE(contains(refusalOf(derived), "DerivedImpl is a "));
  EXPECT_TRUE(contains(refusalOf(std::make_shared<UntiedImpl>()), "'second' is one tensor with another in the clone"));
  EXPECT_TRUE(contains(refusalOf(std::shared_ptr<NetImpl>()), "no module"));
  TiedNet late;
  late->register_parameter("late", at::ones({2}));
  EXPECT_TRUE(contains(refusalOf(late.ptr()), "register_parameter() inside reset()"));
}

}  // namespace
}  // namespace treadle::test::replica_clones_test

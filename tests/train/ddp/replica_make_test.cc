// Replicas that a function of the program makes, where libtorch cannot clone the module, or clones it wrongly.

#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <memory>
#include <stdexcept>

#include "tests/support/expect_error.h"
#include "tests/train/ddp/tied_net.h"
#include "treadle/train/ddp/replica_set.h"

namespace treadle::test::replica_make_test {
namespace {

using namespace tied_net;

// Has no clone(), a layer that it knows by two names, and a member that no registry knows.
struct PairImpl : torch::nn::Module {
  explicit PairImpl(double scale)
      : scale(scale),
        first(torch::nn::LinearOptions(5, 5)),
        layers(register_module("layers", torch::nn::ModuleList(first, torch::nn::Linear(5, 2)))) {
    to(at::kDouble);
  }
  at::Tensor forward(const at::Tensor& input) {
    return layers->at<torch::nn::LinearImpl>(1).forward(first(input) * scale);
  }
  const double scale;
  torch::nn::Linear first;
  torch::nn::ModuleList layers;
};

std::shared_ptr<PairImpl> made(double scale = 3) {
  torch::manual_seed(5);
  return std::make_shared<PairImpl>(scale);
}

TEST(ReplicaSet, TrainsReplicasThatTheProgramMakes) {
  const std::shared_ptr<PairImpl> net = made(), alone = made();
  int replicasMade = 0;
  const auto make = [&] {
    ++replicasMade;
    return std::make_shared<PairImpl>(3);
  };
  ReplicaSet<PairImpl> replicas(net, {.replicas = kShards}, make);
  torch::optim::SGD optimizer(net->parameters(), 0.1), plain(alone->parameters(), 0.1);
  for (int step = 0; step < 4; ++step) {
    optimizer.zero_grad();
    plain.zero_grad();
    replicas.backward(
        [&](PairImpl& replica, int shard) { return replica.forward(inputOf(shard, step)).square().mean(); });
    for (int shard = 0; shard < kShards; ++shard)
      alone->forward(inputOf(shard, step)).square().mean().div(kShards).backward();
    expectClose(gradientsOf(net), gradientsOf(alone));
    optimizer.step();
    plain.step();
  }
  EXPECT_EQ(replicasMade, kShards);
}

TEST(ReplicaSet, DrawsNoNumbersOfTheProgramWhereItMakesReplicas) {
  const std::shared_ptr<PairImpl> net = made();
  const at::Tensor next = at::rand({4});
  made();  // the same seed again
  ReplicaSet<PairImpl> replicas(net, {.replicas = 2}, [] { return std::make_shared<PairImpl>(3); });
  EXPECT_TRUE(haveEqualBits(at::rand({4}), next));
}

struct OtherImpl : PairImpl {
  OtherImpl() : PairImpl(1) {}
};

TEST(ReplicaSet, RefusesWhatIsNoReplicaOfTheModule) {
  const std::shared_ptr<PairImpl> net = made();
  const auto refusalOf = [&](const ReplicaSet<PairImpl>::Make& make) {
    return messageOf<ArgumentError>([&] { ReplicaSet<PairImpl>{net, {.replicas = 2}, make}; });
  };
  EXPECT_TRUE(contains(refusalOf([] { return nullptr; }), "the function that makes replicas returned nothing"));
  EXPECT_TRUE(contains(refusalOf([] { return std::make_shared<OtherImpl>(); }), "OtherImpl"));
  EXPECT_TRUE(contains(refusalOf([&] { return net; }), "is that of the module or of another clone"));
  EXPECT_TRUE(contains(refusalOf([one = made()] { return one; }), "is that of the module or of another clone"));
  const auto converted = [] {
    auto replica = made();
    replica->to(at::kFloat);
    return replica;
  };
  EXPECT_TRUE(contains(refusalOf(converted), "is another one in the clone"));
  EXPECT_TRUE(contains(refusalOf({}), "a function that makes replicas"));
  const auto throws = []() -> std::shared_ptr<PairImpl> { throw std::runtime_error("no file of weights"); };
  EXPECT_THROW((ReplicaSet<PairImpl>{net, {.replicas = 2}, throws}), std::runtime_error);
}

}  // namespace
}  // namespace treadle::test::replica_make_test

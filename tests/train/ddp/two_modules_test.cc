// Several modules in one backward pass: each is averaged by its own group, whatever order they have on which rank.

#include <functional>
#include <optional>
#include <utility>

#include "tests/support/expect_error.h"
#include "tests/train/ddp/net.h"

namespace treadle::test::ddp_test {
namespace {

struct Order {
  bool distributed, otherOrder;
};

class TwoModules : public ::testing::TestWithParam<Order> {
 protected:
  TwoModules() {
    for (Net& net : {std::ref(aloneA_), std::ref(aloneB_)})
      net->forward(at::cat({inputOf(0, 0), inputOf(1, 0)}), false).square().mean().backward();
  }

  static at::Tensor lossOf(DistributedDataParallel<Net>& ddp, const Worker& worker) {
    return ddp.forward(inputOf(worker.self().rank, 0), false).square().mean();
  }

  // Rank 1 may use them in the other order, so that its first gradient comes from the other module.
  static at::Tensor lossOf(DistributedDataParallel<Net>& a, DistributedDataParallel<Net>& b, const Worker& worker) {
    const bool swaps = GetParam().otherOrder && worker.self().rank == 1;
    const at::Tensor first = lossOf(swaps ? b : a, worker);
    return first + lossOf(swaps ? a : b, worker);
  }

  // Of no context: `.grad`.
  static void expectGradients(const Net& net, const Net& alone, const std::optional<AutogradContext>& context) {
    for (const auto& entry : alone->named_parameters()) {
      const at::Tensor parameter = net->named_parameters()[entry.key()];
      EXPECT_TRUE(close(context ? context->gradient(parameter) : parameter.grad(), entry.value().grad()))
          << entry.key();
    }
  }

  static std::optional<AutogradContext> contextOf(Worker& worker) {
    if (!GetParam().distributed) return std::nullopt;
    return std::optional<AutogradContext>(std::in_place, worker);
  }

  Net aloneA_{0}, aloneB_{1};
};

// All weights of A are 0, so it fails on all ranks after its channel, where B may have its averages already. No rank
// makes a step.
TEST_P(TwoModules, AreTogetherWhereOneFailsOnAllRanks) {
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    Net a(0), b(1);
    DdpOptions weighted = smallBuckets();
    weighted.divisor = Divisor::kWeights;
    DistributedDataParallel<Net> ddpA(a, ProcessGroup::make(worker, job.names()), weighted);
    DistributedDataParallel<Net> ddpB(b, ProcessGroup::make(worker, job.names()), smallBuckets());
    for (const double weight : {1, 0, 1}) {
      a->zero_grad();
      b->zero_grad();
      std::optional<AutogradContext> context = contextOf(worker);
      ddpA.setWeight(weight);
      const at::Tensor loss = lossOf(ddpA, ddpB, worker);
      const auto pass = [&] { context ? context->backward({loss}) : loss.backward(); };
      if (weight == 0) {
        EXPECT_TRUE(contains(messageOf<StateError>(pass), "all weights are 0"));
        continue;
      }
      pass();
      expectGradients(a, aloneA_, context);
      expectGradients(b, aloneB_, context);
    }
  });
}

TEST_P(TwoModules, AreBothAveraged) {
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    Net a(0), b(1);
    DistributedDataParallel<Net> ddpA(a, ProcessGroup::make(worker, job.names()), smallBuckets());
    DistributedDataParallel<Net> ddpB(b, ProcessGroup::make(worker, job.names()), smallBuckets());
    std::optional<AutogradContext> context = contextOf(worker);
    const at::Tensor loss = lossOf(ddpA, ddpB, worker);
    context ? context->backward({loss}) : loss.backward();
    expectGradients(a, aloneA_, context);
    expectGradients(b, aloneB_, context);
  });
}

// Else rank 1 might average one module where rank 0 averages the other.
TEST_P(TwoModules, NeedAGroupEach) {
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    const ProcessGroup group = ProcessGroup::make(worker, job.names());
    Net a(0), b(1);
    DistributedDataParallel<Net> ddpA(a, group, smallBuckets()),
        ddpB(b, group.withTimeout(std::chrono::seconds(30)), smallBuckets());
    {
      std::optional<AutogradContext> context = contextOf(worker);
      const at::Tensor loss = lossOf(ddpA, ddpB, worker);
      const auto backward = [&] { context ? context->backward({loss}) : loss.backward(); };
      EXPECT_TRUE(contains(messageOf<StateError>(backward), "make a group for each of the modules"));
    }
    a->zero_grad();
    b->zero_grad();
    // One after the other they may have it.
    for (const bool isA : {true, false}) {
      std::optional<AutogradContext> context = contextOf(worker);
      const at::Tensor loss = lossOf(isA ? ddpA : ddpB, worker);
      context ? context->backward({loss}) : loss.backward();
      isA ? expectGradients(a, aloneA_, context) : expectGradients(b, aloneB_, context);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Passes, TwoModules,
                         ::testing::Values(Order{false, false}, Order{false, true}, Order{true, false},
                                           Order{true, true}),
                         [](const auto& info) {
                           return std::string(info.param.distributed ? "distributed" : "local") +
                                  (info.param.otherOrder ? "InOtherOrder" : "");
                         });

}  // namespace
}  // namespace treadle::test::ddp_test

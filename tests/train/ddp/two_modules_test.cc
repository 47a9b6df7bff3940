// Several modules in one backward pass: each is averaged by its own group, whatever order they have on which rank.

#include <functional>
#include <optional>

#include "tests/train/ddp/net.h"

namespace treadle::test::ddp_test {
namespace {

struct Order {
  bool distributed, otherOrder;
};

class TwoModules : public ::testing::TestWithParam<Order> {};

// Rank 1 uses them in the other order, so that its first gradient comes from the other module.
TEST_P(TwoModules, AreBothAveraged) {
  const auto [distributed, otherOrder] = GetParam();
  TensorJob job(ranks(2));
  Net aloneA(0), aloneB(1);
  for (Net& net : {std::ref(aloneA), std::ref(aloneB)})
    net->forward(at::cat({inputOf(0, 0), inputOf(1, 0)}), false).square().mean().backward();
  job.onAll([&, distributed = distributed, otherOrder = otherOrder](Worker& worker) {
    const int rank = worker.self().rank;
    Net a(0), b(1);
    DistributedDataParallel<Net> ddpA(a, ProcessGroup::make(worker, job.names()), smallBuckets());
    DistributedDataParallel<Net> ddpB(b, ProcessGroup::make(worker, job.names()), smallBuckets());
    std::optional<AutogradContext> context;
    if (distributed) context.emplace(worker);
    auto lossOf = [&](auto& ddp) { return ddp.forward(inputOf(rank, 0), false).square().mean(); };
    const bool swaps = otherOrder && rank == 1;
    const at::Tensor first = lossOf(swaps ? ddpB : ddpA);
    const at::Tensor loss = first + lossOf(swaps ? ddpA : ddpB);
    context ? context->backward({loss}) : loss.backward();
    auto expect = [&](const Net& net, const Net& alone) {
      for (const auto& entry : alone->named_parameters()) {
        const at::Tensor parameter = net->named_parameters()[entry.key()];
        EXPECT_TRUE(close(context ? context->gradient(parameter) : parameter.grad(), entry.value().grad()))
            << entry.key();
      }
    };
    expect(a, aloneA);
    expect(b, aloneB);
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

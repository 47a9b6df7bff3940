// DdpOptions::overlapForward beside other options: the bits of steps within the pass.

#include "tests/train/ddp/overlapped.h"
#include "tests/train/ddp/tables.h"
#include "treadle/train/ddp/power_sgd_hook.h"

namespace treadle::test::overlap_forward_options_test {
namespace {

using namespace ddp_test;

struct Beside {
  const char* name;
  std::function<void(DdpOptions&)> adjust;
};

class OverlapForwardBeside : public ::testing::TestWithParam<Beside> {
 protected:
  static DdpOptions options() {
    DdpOptions options = smallBuckets();
    GetParam().adjust(options);
    return options;
  }
};

// Rank 0 never uses the middle layer.
TEST_P(OverlapForwardBeside, MakesTheBitsOfStepsWithinThePass) {
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    const int rank = worker.self().rank;
    Replica<> during(groupOf(worker, 2), true, options()), within(groupOf(worker, 2), false, options());
    const auto start = copiesOf(during.net->parameters());
    for (int step = 0; step < 6; ++step)
      for (Replica<>* one : {&during, &within}) {
        if (options().divisor == Divisor::kWeights) one->ddp.setWeight(weightOf(rank) + step);
        const at::Tensor output = one->ddp.forward(inputOf(rank, step), /*skip=*/rank == 0);
        one->ddp.awaitAverages();  // of the middle layer too
        output.square().mean().backward();
      }
    during.ddp.awaitAverages();
    expectEqualBits(during.state(), within.state());
    for (size_t i = 0; i < start.size(); ++i) EXPECT_FALSE(haveEqualBits(start[i], during.net->parameters()[i])) << i;
    during.ddp.verifyReplicas();
  });
}

INSTANTIATE_TEST_SUITE_P(
    Options, OverlapForwardBeside,
    ::testing::Values(Beside{"Weights", [](DdpOptions& options) { options.divisor = Divisor::kWeights; }},
                      Beside{"ActiveRanks", [](DdpOptions& options) { options.divisor = Divisor::kActiveRanks; }},
                      Beside{"StaticUse",
                             [](DdpOptions& options) { options.unusedParameters = UnusedParameters::kStatic; }},
                      Beside{"SeveralRounds",
                             [](DdpOptions& options) {
                               options.hook = std::make_shared<PowerSgdHook>(PowerSgdOptions{.startAfter = 0});
                             }},
                      Beside{"GivenOrder",
                             [](DdpOptions& options) {
                               options.bucketOrder = {"first.weight", "last.bias",   "middle.weight",
                                                      "last.weight",  "middle.bias", "first.bias"};
                             }}),
    [](const auto& info) { return std::string(info.param.name); });

// Each has a group of its own, and one of them may be waited for while the other one is on its way.
TEST(OverlapForward, StepsSeveralModulesOfAPass) {
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    const int rank = worker.self().rank;
    std::vector<std::vector<at::Tensor>> ends;
    for (const bool overlaps : {true, false}) {
      Replica<> one(groupOf(worker, 2), overlaps);
      Replica<torch::optim::AdamW> other(groupOf(worker, 2), overlaps);
      for (int step = 0; step < 5; ++step) {
        const at::Tensor a = one.ddp.forward(inputOf(rank, step)), b = other.ddp.forward(inputOf(rank, step + 1));
        (a * b).square().mean().backward();
      }
      other.ddp.awaitAverages();
      one.ddp.awaitAverages();
      ends.push_back(one.state());
      for (const at::Tensor& tensor : other.state()) ends.back().push_back(tensor);
    }
    expectEqualBits(ends[0], ends[1]);
  });
}

TEST(OverlapForward, StepsBySparseAverages) {
  using sparse_test::Tables;
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    std::vector<std::vector<at::Tensor>> ends;
    for (const bool overlaps : {true, false}) {
      Tables net(/*isSparse=*/true);
      DdpOptions options = smallBuckets();
      options.optimizerInBackward =
          std::make_shared<torch::optim::SGD>(net->parameters(), torch::optim::SGDOptions(0.1));
      options.overlapForward = overlaps;
      DistributedDataParallel<Tables> ddp(net, groupOf(worker, 2), options);
      for (int step = 0; step < 5; ++step) {
        if (overlaps) ddp.awaitAverages();
        net->loss(worker.self().rank, step).backward();
      }
      if (overlaps) ddp.awaitAverages();
      ends.push_back(copiesOf(net->parameters()));
    }
    expectEqualBits(ends[0], ends[1]);
  });
}

}  // namespace
}  // namespace treadle::test::overlap_forward_options_test

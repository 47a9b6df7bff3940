// A pass that fails at its very end on rank 1 alone, where the others make their step: under join, with an optimizer
// that steps within the pass, and where a rank leaves before the others go on.

#include "tests/train/ddp/apart.h"

#include "tests/train/ddp/meeting.h"
#include "tests/train/ddp/uneven.h"

namespace treadle::test::apart_test {
namespace {

using namespace ddp_test;

constexpr int kRanks = 3;
constexpr int kAveragesAreThere = 3;  // rounds of callbacks, of a pass without a hook

ProcessGroup groupOf(Worker& worker, const std::vector<std::string>& members) {
  return ProcessGroup::make(worker, members, {.sumOrder = SumOrder::kRank});
}

// The pass fails when the averages are there.
template <class Pass>
void failAtTheEnd(Net& net, Pass pass) {
  const auto hook = net->bias.register_hook([](const at::Tensor&) { throwAfter(kAveragesAreThere); });
  std::string why;
  try {
    pass();
  } catch (const std::exception& error) {
    why = error.what();
  }
  net->bias.remove_hook(hook);
  EXPECT_EQ(why, "another callback");
}

// Rank 1 has the averages and makes no step.
void trainApart(Trained& own) {
  if (own.rank != 1) return own.train(0);
  failAtTheEnd(own.net, [&] { own.train(0); });
  own.optimizer.zero_grad();
}

// Rank 1 alone has not made a step, so all begin without momentum.
void forgetMomentum(Trained& own) { own.optimizer.state().clear(); }

template <class Pass>
void expectApart(DistributedDataParallel<Net>& ddp, Pass pass) {
  const Status why = statusOf<StateError>(pass);
  EXPECT_EQ(why.worker(), "rank1") << why.toString();
  EXPECT_EQ(ddp.state().condition, DdpCondition::kApart);
}

TEST(ApartUnderJoin, FailsTheNextPassOnRanksWithAndWithoutABatch) {
  TensorJob job(ranks(kRanks));
  Meeting haveFailed(kRanks);  // a guard that ends abandons the group
  job.onAll([&](Worker& worker) {
    Trained own(groupOf(worker, job.names()), smallBuckets());
    {
      auto join = own.join();
      if (own.rank == 2) {
        expectApart(own.ddp, [&] { join.finish(); });
        EXPECT_EQ(own.steps, 1) << "it makes the step of the first pass";
      } else {
        trainApart(own);
        expectApart(own.ddp, [&] { own.train(1); });
      }
      haveFailed.come();
    }
    EXPECT_FALSE(own.ddp.rebind(groupOf(worker, job.names()))) << "rank 1 has not made the step";
    own.ddp.verifyReplicas();
    forgetMomentum(own);
    auto join = own.join();
    if (own.rank != 2) own.train(2);
    join.finish();
    own.ddp.verifyReplicas();
  });
}

// By then it has made its step there too.
TEST(FailureAfterAStepWithinThePass, LeavesReplicasEqual) {
  TensorJob job(ranks(kRanks));
  job.onAll([&](Worker& worker) {
    const int rank = worker.self().rank;
    Net net(0);
    DdpOptions options = smallBuckets();
    const auto optimizer = std::make_shared<torch::optim::SGD>(net->parameters(), sgdOfUneven());
    options.optimizerInBackward = optimizer;
    DistributedDataParallel<Net> ddp(net, groupOf(worker, job.names()), options);
    const auto backward = [&](int batch) { lossOfBatch(*net, rank, batch).backward(); };
    if (rank == 1) {
      failAtTheEnd(net, [&] { backward(0); });
    } else {
      backward(0);
    }
    backward(1);
    EXPECT_EQ(ddp.state().condition, DdpCondition::kUsable);
    ddp.verifyReplicas();
    expectTrainedAs(trainedAlone(Counts(kRanks, 2), Divisor::kWorldSize, 2), {stateAfter(*net, *optimizer)});
  });
}

// The rank that is not in the group with which the others go on.
class ApartGroup : public ::testing::TestWithParam<int> {};

TEST_P(ApartGroup, GoesOnWithoutARank) {
  std::vector<std::string> left = ranks(kRanks);
  left.erase(left.begin() + GetParam());
  TensorJob job(ranks(kRanks));
  job.onAll([&](Worker& worker) {
    Trained own(groupOf(worker, job.names()), smallBuckets());
    trainApart(own);
    expectApart(own.ddp, [&] { own.train(1); });
    if (own.rank == GetParam()) return;
    const bool areEqual = own.ddp.rebind(groupOf(worker, left));
    EXPECT_EQ(areEqual, GetParam() == 1) << "rank 1 alone has not made the step";
    EXPECT_EQ(own.ddp.state().condition, DdpCondition::kUsable);
    own.ddp.verifyReplicas();
    if (!areEqual) forgetMomentum(own);
    own.train(1);
    own.ddp.verifyReplicas();
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, ApartGroup, ::testing::Range(0, kRanks));

}  // namespace
}  // namespace treadle::test::apart_test

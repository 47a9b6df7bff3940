// A rank without a batch takes part in the pass of the others, and ranks agree to skip a batch.

#include <algorithm>
#include <functional>
#include <optional>

#include "tests/support/expect_error.h"
#include "tests/support/seeds.h"
#include "tests/train/ddp/net.h"

namespace treadle::test::skip_test {
namespace {

using namespace ddp_test;

constexpr int kSteps = 6;

// Which ranks have a batch in which step, at least one, and whether that uses `skipped`.
struct Schedule {
  std::vector<std::vector<bool>> hasBatch, skips;

  explicit Schedule(int size) {
    Random random(seedOfRun());
    for (int step = 0; step < kSteps; ++step) {
      auto &has = hasBatch.emplace_back(), &leaves = skips.emplace_back();
      for (int rank = 0; rank < size; ++rank) {
        has.push_back(pick(random, 2) == 0);
        leaves.push_back(pick(random, 2) == 0);
      }
      has[pick(random, has.size())] = true;
    }
  }
  bool has(int rank, int step) const { return hasBatch[static_cast<size_t>(step)][static_cast<size_t>(rank)]; }
  int batches(int step) const {
    const auto& ofRanks = hasBatch[static_cast<size_t>(step)];
    return static_cast<int>(std::count(ofRanks.begin(), ofRanks.end(), true));
  }
  at::Tensor loss(Net& net, int rank, int step) const {
    return net->forward(inputOf(rank, step), skips[static_cast<size_t>(step)][static_cast<size_t>(rank)])
        .square()
        .sum();
  }
};

struct Case {
  Divisor divisor;
  bool distributed;
};

class SkipPass : public ::testing::TestWithParam<Case> {};

TEST_P(SkipPass, CountsAsABatchOfNothing) {
  const auto [divisor, distributed] = GetParam();
  constexpr int kSize = 3;
  const Schedule schedule(kSize);
  std::vector<Net> expected;
  for (int step = 0; step < kSteps; ++step) {
    Net& alone = expected.emplace_back(0);
    const double batches = schedule.batches(step);
    const double by = divisor == Divisor::kWorldSize ? kSize : divisor == Divisor::kWeights ? 2 * batches : batches;
    for (int rank = 0; rank < kSize; ++rank)
      if (schedule.has(rank, step)) schedule.loss(alone, rank, step).div(by).backward();
  }
  TensorJob job(ranks(kSize));
  DdpOptions options = smallBuckets();
  options.divisor = divisor;
  job.onAll([&, distributed = distributed](Worker& worker) {
    const int rank = worker.self().rank;
    Net net(0);
    DistributedDataParallel<Net> ddp(net, ProcessGroup::make(worker, job.names()), options);
    for (int step = 0; step < kSteps; ++step) {
      net->zero_grad();
      std::optional<AutogradContext> context;
      if (distributed) context.emplace(worker);
      if (!schedule.has(rank, step)) {
        context ? ddp.skipPass(*context) : ddp.skipPass();
      } else {
        if (options.divisor == Divisor::kWeights) ddp.setWeight(2);
        const at::Tensor loss = schedule.loss(net, rank, step);
        context ? context->backward({loss}) : loss.backward();
      }
      for (const auto& entry : expected[static_cast<size_t>(step)]->named_parameters()) {
        const at::Tensor parameter = net->named_parameters()[entry.key()];
        const at::Tensor gradient = context ? context->gradient(parameter) : parameter.grad();
        const at::Tensor& wanted = entry.value().grad();
        EXPECT_TRUE(wanted.defined() ? close(gradient, wanted, 1e-12) : ::testing::AssertionResult(!gradient.defined()))
            << entry.key() << " in step " << step;
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Divisors, SkipPass,
                         ::testing::Values(Case{Divisor::kWorldSize, false}, Case{Divisor::kWorldSize, true},
                                           Case{Divisor::kActiveRanks, false}, Case{Divisor::kActiveRanks, true},
                                           Case{Divisor::kWeights, false}, Case{Divisor::kWeights, true}),
                         [](const auto& info) {
                           return std::string(ddp::nameOf(info.param.divisor)) +
                                  (info.param.distributed ? "Distributed" : "");
                         });

TEST(SkippedPasses, OfAllRanksLeaveNoGradient) {
  TensorJob job(ranks(2));
  for (const Divisor divisor : {Divisor::kWorldSize, Divisor::kWeights}) {
    DdpOptions options = smallBuckets();
    options.divisor = divisor;
    job.onAll([&](Worker& worker) {
      Net net(0);
      DistributedDataParallel<Net> ddp(net, ProcessGroup::make(worker, job.names()), options);
      ddp.skipPass();
      for (const at::Tensor& parameter : net->parameters()) EXPECT_FALSE(parameter.grad().defined());
    });
  }
}

TEST(SkippedPasses, LeaveNoGradientOfTheirOwnInAContext) {
  TensorJob job(ranks(1));
  DistributedDataParallel<Net> ddp(Net(0), ProcessGroup::make(job[0], job.names()), smallBuckets());
  AutogradContext context(job[0]);
  ddp.skipPass(context);
  EXPECT_TRUE(context.gradients().empty());
}

// There are no gradients, only buffers.
TEST(SkippedPasses, KeepBuffersEqualWhereNoParameterIsTrained) {
  TensorJob job(ranks(2));
  DdpOptions options = smallBuckets();
  options.buffers = Buffers::kFromRank0;
  job.onAll([&](Worker& worker) {
    Net net(0);
    for (at::Tensor& parameter : net->parameters()) parameter.set_requires_grad(false);
    DistributedDataParallel<Net> ddp(net, ProcessGroup::make(worker, job.names()), options);
    for (int pass = 0; pass < 2; ++pass) {
      net->offset.fill_(7 + worker.self().rank);
      ddp.skipPass();
      EXPECT_TRUE(at::equal(net->offset, at::full({3}, 7, at::kDouble)));
    }
  });
}

// The other ranks do not know of it.
TEST(SkippedPasses, UnderNoSyncSendNothing) {
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    const int rank = worker.self().rank;
    Net net(0), alone(0);
    DistributedDataParallel<Net> ddp(net, ProcessGroup::make(worker, job.names()), smallBuckets());
    if (rank == 1) {
      auto unaveraged = ddp.noSync();
      ddp.skipPass();
      EXPECT_EQ(ddp.pendingPasses(), 0U);
    }
    ddp.forward(inputOf(rank, 0), false).square().mean().backward();
    alone->forward(at::cat({inputOf(0, 0), inputOf(1, 0)}), false).square().mean().backward();
    EXPECT_TRUE(close(net->first.grad(), alone->first.grad()));
  });
}

// Rank 1 has no batch for a pass of two modules, which it comes to in another order.
TEST(EmptyLosses, AreAddedWhereSeveralModulesAreInAPass) {
  TensorJob job(ranks(2));
  Net aloneA(0), aloneB(1);
  for (Net& alone : {std::ref(aloneA), std::ref(aloneB)})
    alone->forward(inputOf(0, 0), false).square().mean().div(2).backward();
  job.onAll([&](Worker& worker) {
    const int rank = worker.self().rank;
    Net a(0), b(1);
    DdpOptions options = smallBuckets();
    options.buffers = Buffers::kAverage;  // one more operation that the ranks wait for
    DistributedDataParallel<Net> ddpA(a, ProcessGroup::make(worker, job.names()), options);
    DistributedDataParallel<Net> ddpB(b, ProcessGroup::make(worker, job.names()), options);
    at::Tensor loss = ddpB.emptyLoss() + ddpA.emptyLoss();
    EXPECT_EQ(loss.item<double>(), 0);
    if (rank == 0)
      loss = ddpA.forward(inputOf(0, 0), false).square().mean() + ddpB.forward(inputOf(0, 0), false).square().mean();
    loss.backward();
    EXPECT_TRUE(close(a->first.grad(), aloneA->first.grad()));
    EXPECT_TRUE(close(b->first.grad(), aloneB->first.grad()));
  });
}

TEST(EmptyLosses, ChangeNoLossToWhichTheyAreAdded) {
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    const int rank = worker.self().rank;
    Net net(0), alone(0);
    DdpOptions options = smallBuckets();
    options.divisor = Divisor::kActiveRanks;
    DistributedDataParallel<Net> ddp(net, ProcessGroup::make(worker, job.names()), options);
    (ddp.forward(inputOf(rank, 0), false).square().mean() + ddp.emptyLoss()).backward();
    alone->forward(at::cat({inputOf(0, 0), inputOf(1, 0)}), false).square().mean().backward();
    for (const auto& entry : alone->named_parameters())
      EXPECT_TRUE(close(net->named_parameters()[entry.key()].grad(), entry.value().grad())) << entry.key();
  });
}

TEST(AgreeToSkip, IsTrueOnAllRanksWhereOneWantsTo) {
  constexpr int kSize = 3;
  TensorJob job(ranks(kSize));
  Random random(seedOfRun());
  std::vector<std::vector<bool>> wants(8);
  for (auto& ofRanks : wants)
    for (int rank = 0; rank < kSize; ++rank) ofRanks.push_back(pick(random, 4) == 0);
  job.onAll([&](Worker& worker) {
    const int rank = worker.self().rank;
    Net net(0);
    DistributedDataParallel<Net> ddp(net, ProcessGroup::make(worker, job.names()), smallBuckets());
    for (const auto& ofRanks : wants) {
      const bool any = std::count(ofRanks.begin(), ofRanks.end(), true) > 0;
      EXPECT_EQ(ddp.agreeToSkip(ofRanks[static_cast<size_t>(rank)]), any);
      if (!any) ddp.forward(inputOf(rank, 0), false).square().mean().backward();
    }
  });
}

// Its operation would come between those of the pass, on this rank alone.
TEST(AgreeToSkip, WithinAPassIsRefused) {
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    const int rank = worker.self().rank;
    Net net(0);
    DistributedDataParallel<Net> ddp(net, ProcessGroup::make(worker, job.names()), smallBuckets());
    net->bias.register_hook([&](const at::Tensor&) {
      if (rank != 0) return;
      EXPECT_THROW(ddp.agreeToSkip(true), StateError);
    });
    ddp.forward(inputOf(rank, 0), false).square().mean().backward();
  });
}

}  // namespace
}  // namespace treadle::test::skip_test

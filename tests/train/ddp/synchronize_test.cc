// Gradients of passes under noSync can be averaged without another batch, and it can be asked how many there are.

#include <optional>

#include "tests/support/expect_error.h"
#include "tests/support/seeds.h"
#include "tests/train/ddp/net.h"

namespace treadle::test::synchronize_test {
namespace {

using namespace ddp_test;

// Which passes are averaged, the same on all ranks, and which ranks leave out `skipped` in which.
struct Pattern {
  std::vector<bool> averaged;
  std::vector<std::vector<bool>> skips;  // by pass and rank

  Pattern(Random& random, int size) {
    for (uint64_t left = 1 + pick(random, 5); left > 0; --left) {
      averaged.push_back(pick(random, 3) == 0);
      auto& ofRanks = skips.emplace_back();
      for (int rank = 0; rank < size; ++rank) ofRanks.push_back(pick(random, 2) == 0);
    }
  }
  at::Tensor loss(Net& net, int rank, size_t pass) const {
    return net->forward(inputOf(rank, static_cast<int>(pass)), skips[pass][static_cast<size_t>(rank)]).square().mean();
  }
};

class Synchronize : public ::testing::TestWithParam<bool> {};

TEST_P(Synchronize, AfterAnyPatternOfPassesGivesTheGradientsOfOneProcess) {
  for (const int size : {1, 2, 3}) {
    TensorJob job(ranks(size));
    forSeeds(6, [&](Random& random) {
      const Pattern pattern(random, size);
      Net alone(0);
      for (size_t pass = 0; pass < pattern.averaged.size(); ++pass)
        for (int rank = 0; rank < size; ++rank) pattern.loss(alone, rank, pass).div(size).backward();
      job.onAll([&](Worker& worker) {
        const int rank = worker.self().rank;
        Net net(0);
        DistributedDataParallel<Net> ddp(net, ProcessGroup::make(worker, job.names()), smallBuckets());
        std::optional<AutogradContext> context;
        if (GetParam()) context.emplace(worker);
        size_t pending = 0;
        for (size_t pass = 0; pass < pattern.averaged.size(); ++pass) {
          std::optional<ddp::NoSync> unaveraged;
          if (!pattern.averaged[pass]) unaveraged.emplace(ddp.noSync());
          const at::Tensor loss = pattern.loss(net, rank, pass);
          context ? context->backward({loss}) : loss.backward();
          pending = pattern.averaged[pass] ? 0 : pending + 1;
          EXPECT_EQ(ddp.pendingPasses(), pending);
        }
        context ? ddp.synchronize(*context) : ddp.synchronize();
        EXPECT_EQ(ddp.pendingPasses(), 0U);
        for (const auto& entry : alone->named_parameters()) {
          const at::Tensor parameter = net->named_parameters()[entry.key()];
          const at::Tensor gradient = context ? context->gradient(parameter) : parameter.grad();
          const at::Tensor& wanted = entry.value().grad();
          EXPECT_TRUE(wanted.defined() ? close(gradient, wanted, 1e-12)
                                       : ::testing::AssertionResult(!gradient.defined()))
              << entry.key();
        }
      });
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Passes, Synchronize, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "distributed" : "local"; });

TEST(Synchronize, WithoutAnyGradientChangesNothing) {
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    Net net(0);
    DistributedDataParallel<Net> ddp(net, ProcessGroup::make(worker, job.names()), smallBuckets());
    ddp.synchronize();
    for (const at::Tensor& parameter : net->parameters()) EXPECT_FALSE(parameter.grad().defined());
    const at::NoGradGuard noGrad;
    ddp.synchronize();
  });
}

// The others' pass fails too: nobody gets half of an average.
TEST(Synchronize, FailsOnAllRanksWhenOnePassFails) {
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    const int rank = worker.self().rank;
    Net net(0);
    DistributedDataParallel<Net> ddp(net, ProcessGroup::make(worker, job.names()), smallBuckets());
    if (rank == 0) {
      const at::Tensor input = inputOf(rank, 0).requires_grad_();
      EXPECT_THROW(ddp.forward(Broken::apply(input), false).square().mean().backward(), std::runtime_error);
    } else {
      EXPECT_EQ(statusOf<CancelledError>([&] { ddp.synchronize(); }).worker(), "rank0");
    }
    net->zero_grad();
    ddp.synchronize();
  });
}

TEST(Synchronize, UnderNoSyncIsRefused) {
  TensorJob job(ranks(1));
  DistributedDataParallel<Net> ddp(Net(0), ProcessGroup::make(job[0], job.names()));
  auto unaveraged = ddp.noSync();
  EXPECT_TRUE(contains(messageOf<StateError>([&] { ddp.synchronize(); }), "a guard of noSync() or a LocalSgd lives"));
}

TEST(PendingPasses, AreThoseWhoseGradientsAreThereAndNotAveraged) {
  TensorJob job(ranks(1));
  Net net(0);
  DistributedDataParallel<Net> ddp(net, ProcessGroup::make(job[0], job.names()), smallBuckets());
  auto pass = [&] { ddp.forward(inputOf(0, 0), false).square().mean().backward(); };
  EXPECT_EQ(ddp.pendingPasses(), 0U);
  const at::Tensor broken = Broken::apply(inputOf(0, 0).requires_grad_());
  EXPECT_THROW(ddp.forward(broken, false).square().mean().backward(), std::runtime_error);
  EXPECT_EQ(ddp.pendingPasses(), 1U) << "of the failed pass";
  {
    auto unaveraged = ddp.noSync();
    pass();
    EXPECT_EQ(ddp.pendingPasses(), 2U);
    net->zero_grad();
    EXPECT_EQ(ddp.pendingPasses(), 0U) << "their gradients were cleared";
    pass();
    pass();
    EXPECT_EQ(ddp.pendingPasses(), 2U);
  }
  pass();
  EXPECT_EQ(ddp.pendingPasses(), 0U);
}

TEST(SynchronizeWithinAPass, IsAnErrorAndThePassGoesOn) {
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    Net net(0);
    DistributedDataParallel<Net> ddp(net, ProcessGroup::make(worker, job.names()), smallBuckets());
    std::string why;
    net->bias.register_hook([&](const at::Tensor&) { why = messageOf<StateError>([&] { ddp.synchronize(); }); });
    net->forward(inputOf(worker.self().rank, 0), false).square().mean().backward();
    EXPECT_TRUE(contains(why, "synchronize() is called between passes")) << why;
    ddp.verifyReplicas();
  });
}

}  // namespace
}  // namespace treadle::test::synchronize_test

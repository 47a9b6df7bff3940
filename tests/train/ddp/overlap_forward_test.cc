// DdpOptions::overlapForward: averages that come during the next forward pass, and steps that make the bits of steps
// after the pass.

#include <functional>
#include <utility>

#include "tests/support/expect_error.h"
#include "tests/support/job_with_servers.h"
#include "tests/train/ddp/bucket_hooks.h"
#include "tests/train/ddp/hooks.h"
#include "tests/train/ddp/overlapped.h"
#include "treadle/train/ddp/replica_set.h"

namespace treadle::test::overlap_forward_test {
namespace {

using namespace ddp_test;

template <class Optimizer>
class OverlapForwardOf : public ::testing::Test {};
TYPED_TEST_SUITE(OverlapForwardOf, AllOptimizers);

// Some ranks do not use the middle layer, and in some steps no rank does.
TYPED_TEST(OverlapForwardOf, MakesTheBitsOfStepsWithinThePass) {
  for (const int size : {1, 3}) {
    TensorJob job(ranks(size));
    job.onAll([&](Worker& worker) {
      const int rank = worker.self().rank;
      Replica<TypeParam> during(groupOf(worker, size), true), within(groupOf(worker, size), false);
      for (int step = 0; step < 6; ++step)
        for (Replica<TypeParam>* one : {&during, &within}) {
          const bool skip = step == 1 || (step % 2 == 0 && rank == 0);
          const at::Tensor output = one->ddp.forward(inputOf(rank, step), skip);
          one->ddp.awaitAverages();  // of the middle layer too, where this pass does not use it and the last one has
          output.square().mean().backward();
        }
      during.ddp.awaitAverages();
      expectEqualBits(during.state(), within.state());
      for (const at::Tensor& parameter : during.net->parameters()) EXPECT_FALSE(parameter.grad().defined());
      during.ddp.verifyReplicas();
      EXPECT_EQ(during.ddp.stats().averagedPasses, 6U);
      EXPECT_EQ(during.ddp.stats().failedPasses, 0U);
    });
  }
}

TEST(OverlapForward, MakesTheSameBitsWithAService) {
  for (const int servers : {0, 1}) {
    JobWithServers<TensorJob> job("rank", 3, servers, AutogradOptions());
    job.onWorkers([&](Worker& worker) {
      const int rank = worker.self().rank;
      DdpOptions options = smallBuckets();
      options.averageBy = AverageBy::kService;
      Replica<torch::optim::AdamW> during(groupOf(worker, 3), true, options),
          within(groupOf(worker, 3), false, options);
      for (int step = 0; step < 8; ++step)
        for (auto* one : {&during, &within}) one->backward(rank, step);
      during.ddp.awaitAverages();
      expectEqualBits(during.state(), within.state());
      during.ddp.verifyReplicas();
    });
  }
}

// ---- when it waits

TEST(OverlapForward, WaitsForTheAveragesOfAModuleAlone) {
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    const auto hook = std::make_shared<Held>();
    Replica<> replica(groupOf(worker, 2), true, smallBucketsWith(hook));
    const std::shared_ptr<void> atEnd(nullptr, [&](void*) { hook->release(); });  // the replica waits for it
    const auto isStepped = [&, before = copiesOf(replica.net->parameters())](size_t parameter) {
      return !haveEqualBits(replica.net->parameters()[parameter], before[parameter]);
    };
    replica.backward(worker.self().rank, 0);  // returns while a bucket is held
    replica.ddp.awaitAverages(*replica.net->last);
    EXPECT_TRUE(isStepped(4));
    EXPECT_FALSE(isStepped(0));
    hook->release();
    replica.ddp.awaitAverages(*replica.net->first);
    EXPECT_TRUE(isStepped(0));
    replica.backward(worker.self().rank, 1);
    replica.ddp.verifyReplicas();
  });
}

using Function = std::function<void(Replica<>&, Worker&)>;
class OverlapForwardBefore : public ::testing::TestWithParam<std::pair<const char*, Function>> {};

// Nobody else steps what a pass has left.
TEST_P(OverlapForwardBefore, AllAveragesAreWaitedFor) {
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    Replica<> replica(groupOf(worker, 2), true);
    const auto before = copiesOf(replica.net->parameters());
    replica.backward(worker.self().rank, 0);
    for (size_t i = 0; i < before.size(); ++i) {
      EXPECT_TRUE(haveEqualBits(before[i], replica.net->parameters()[i])) << i;
      EXPECT_FALSE(replica.net->parameters()[i].grad().defined()) << "an optimizer might step by it";
    }
    GetParam().second(replica, worker);
    for (size_t i = 0; i < before.size(); ++i)
      EXPECT_FALSE(haveEqualBits(before[i], replica.net->parameters()[i])) << i;
  });
}

TEST(OverlapForward, TheEndWaitsForAllAverages) {
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    Layers net;
    {
      Replica<> replica(groupOf(worker, 2), true);
      net = replica.net;
      replica.backward(worker.self().rank, 0);
      net->beforeUse = nullptr;
    }
    for (size_t i = 0; i < net->parameters().size(); ++i)
      EXPECT_FALSE(haveEqualBits(Layers()->parameters()[i], net->parameters()[i])) << i;
  });
}

INSTANTIATE_TEST_SUITE_P(
    Functions, OverlapForwardBefore,
    ::testing::Values(
        std::pair{"NoSync", Function([](Replica<>& one, Worker&) { const auto guard = one.ddp.noSync(); })},
        std::pair{"SkipPass", Function([](Replica<>& one, Worker&) { one.ddp.skipPass(); })},
        std::pair{"Synchronize", Function([](Replica<>& one, Worker&) { one.ddp.synchronize(); })},
        std::pair{"PendingPasses", Function([](Replica<>& one, Worker&) { EXPECT_EQ(one.ddp.pendingPasses(), 0U); })},
        std::pair{"VerifyReplicas", Function([](Replica<>& one, Worker&) { one.ddp.verifyReplicas(); })},
        std::pair{"AgreeToSkip", Function([](Replica<>& one, Worker&) { EXPECT_FALSE(one.ddp.agreeToSkip(false)); })},
        std::pair{"Rebind",
                  Function([](Replica<>& one, Worker& worker) { EXPECT_TRUE(one.ddp.rebind(groupOf(worker, 2))); })},
        std::pair{"Join", Function([](Replica<>& one, Worker&) { one.ddp.join([] {}).finish(); })}),
    [](const auto& info) { return std::string(info.param.first); });

// Gradients under noSync() are no part of the steps that are left, and count in the next ones.
TEST(OverlapForward, StepsBySumsOfPassesUnderNoSync) {
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    const int rank = worker.self().rank;
    Replica<> during(groupOf(worker, 2), true), within(groupOf(worker, 2), false);
    for (int step = 0; step < 4; ++step)
      for (Replica<>* one : {&during, &within}) {
        {
          auto unaveraged = one->ddp.noSync();
          one->backward(rank, 2 * step);
        }
        one->backward(rank, 2 * step + 1);
      }
    during.ddp.awaitAverages();
    expectEqualBits(during.state(), within.state());
  });
}

// A rank without a batch makes its steps at another moment than the others.
TEST(OverlapForward, StepsByTheRatesOfThePass) {
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    const int rank = worker.self().rank;
    Replica<torch::optim::AdamW> during(groupOf(worker, 2), true), within(groupOf(worker, 2), false);
    for (int step = 0; step < 6; ++step)
      for (auto* one : {&during, &within}) {
        const bool hasBatch = rank != step % 2;
        at::Tensor loss;
        if (step % 3 == 1) one->optimizer->param_groups()[0].options().set_lr(0.01 * (step + 1));
        if (hasBatch) loss = one->ddp.forward(inputOf(rank, step)).square().mean();
        if (step % 3 == 2) one->optimizer->param_groups()[0].options().set_lr(0.02 * (step + 1));
        hasBatch ? loss.backward() : one->ddp.skipPass();
      }
    during.ddp.awaitAverages();
    EXPECT_EQ(during.optimizer->param_groups()[0].options().get_lr(), 0.12);
    expectEqualBits(during.state(), within.state());
    during.ddp.verifyReplicas();
  });
}

// Ranks with different numbers of batches.
TEST(OverlapForward, MakesTheStepsOfOtherRanksUnderJoin) {
  TensorJob job(ranks(3));
  job.onAll([&](Worker& worker) {
    const int rank = worker.self().rank;
    Replica<> during(groupOf(worker, 3), true), within(groupOf(worker, 3), false);
    for (Replica<>* one : {&during, &within}) {
      auto join = one->ddp.join([] {});
      for (int step = 0; step < 2 * rank; ++step) one->backward(rank, step);
      join.finish();
    }
    during.ddp.awaitAverages();
    expectEqualBits(during.state(), within.state());
    during.ddp.verifyReplicas();
  });
}

TEST(OverlapForward, StepsBeforeReplicasOfAProcessUseTheParameters) {
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    const int rank = worker.self().rank;
    Replica<> during(groupOf(worker, 2), true), within(groupOf(worker, 2), false);
    for (Replica<>* one : {&during, &within}) {
      ReplicaSet<Layers> replicas(one->ddp, {.replicas = 2}, [] { return Layers().ptr(); });
      for (int step = 0; step < 4; ++step)
        replicas.backward([&](LayersImpl& replica, int index) {
          return replica.forward(inputOf(2 * rank + index, step)).square().mean();
        });
    }
    during.ddp.awaitAverages();
    expectEqualBits(during.state(), within.state());
  });
}

// ---- misuse and failures

TEST(OverlapForward, APassWhoseForwardHasNotWaitedFailsOnAllRanks) {
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    const int rank = worker.self().rank;
    Replica<> forgetful(groupOf(worker, 2), true), within(groupOf(worker, 2), false);
    const auto waits = std::exchange(forgetful.net->beforeUse, nullptr);
    for (Replica<>* one : {&forgetful, &within}) one->backward(rank, 0);
    const std::string why = messageOf<Error>([&] { forgetful.backward(rank, 1); });
    EXPECT_TRUE(contains(why, "parameter 'first.weight'") && contains(why, "awaitAverages(module)")) << why;
    forgetful.optimizer->zero_grad();
    forgetful.net->beforeUse = waits;
    for (Replica<>* one : {&forgetful, &within}) one->backward(rank, 2);
    forgetful.ddp.awaitAverages();
    expectEqualBits(forgetful.state(), within.state());
  });
}

// The wait for a module steps another one too, whose gradients are in the same bucket.
TEST(OverlapForward, AModuleThatSharesABucketIsWaitedForByItself) {
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    const int rank = worker.self().rank;
    Replica<> replica(groupOf(worker, 2), true, DdpOptions());
    replica.backward(rank, 0);
    replica.net->beforeUse = [&](const torch::nn::Module& layer) {
      if (&layer != replica.net->middle.get()) replica.ddp.awaitAverages(layer);
    };
    const std::string why = messageOf<Error>([&] { replica.backward(rank, 1); });
    EXPECT_TRUE(contains(why, "parameter 'middle.")) << why;
  });
}

TEST(OverlapForward, AnEmptyLossWaitsForNoModule) {
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    const int rank = worker.self().rank;
    Replica<> replica(groupOf(worker, 2), true);
    replica.backward(rank, 0);
    replica.net->beforeUse = nullptr;
    const at::Tensor batch = (replica.net->first->bias * at::ones({7}, at::kDouble)).sum();
    const at::Tensor loss = batch + replica.ddp.emptyLoss();  // whose node is younger, so the pass comes to it first
    const std::string why = messageOf<Error>([&] { loss.backward(); });
    EXPECT_TRUE(contains(why, "parameter 'first.bias'")) << why;
  });
}

// On one rank alone, so the others learn why.
TEST(OverlapForward, APassWhoseForwardHasNotWaitedOnARankNamesIt) {
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    const int rank = worker.self().rank;
    Replica<> replica(groupOf(worker, 2), true);
    replica.backward(rank, 0);
    const auto waits = replica.net->beforeUse;
    if (rank == 1) replica.net->beforeUse = nullptr;
    if (rank == 1) {
      EXPECT_THROW(replica.backward(rank, 1), StateError);
    } else {
      EXPECT_TRUE(contains(messageOf<CancelledError>([&] { replica.backward(rank, 1); }), "rank1"));
    }
    replica.net->beforeUse = waits;
    replica.optimizer->zero_grad();
    replica.backward(rank, 2);
    replica.ddp.verifyReplicas();
  });
}

class OverlapForwardFailing : public ::testing::TestWithParam<size_t> {};

// Before any parameter is stepped on the rank, or after some are: others step all.
TEST_P(OverlapForwardFailing, EndsTheGroupAndRebindGoesOn) {
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    const int rank = worker.self().rank;
    const auto hook = std::make_shared<FailsForAParameter>();
    Replica<> replica(groupOf(worker, 2), true, smallBucketsWith(hook));
    if (rank == 1) hook->parameter = GetParam();
    replica.backward(rank, 0);
    if (rank == 0) replica.ddp.awaitAverages();
    worker.barrier();
    if (rank == 1) {
      EXPECT_TRUE(contains(messageOf<Error>([&] { replica.ddp.awaitAverages(); }), "this all-reduce has failed"));
      EXPECT_NE(replica.ddp.state().condition, DdpCondition::kUsable);
      replica.ddp.awaitAverages();  // nothing is on its way any more
      hook->parameter.reset();
    } else {
      EXPECT_THROW(replica.backward(rank, 1), Error);
    }
    EXPECT_FALSE(replica.ddp.rebind(groupOf(worker, 2)));
    replica.ddp.verifyReplicas();
    replica.backward(rank, 2);
  });
}

INSTANTIATE_TEST_SUITE_P(Parameters, OverlapForwardFailing, ::testing::Values(size_t{0}, size_t{5}));

TEST(OverlapForward, RefusesOptionsThatCannotBe) {
  TensorJob job(ranks(1));
  const ProcessGroup group = groupOf(job[0], 1);
  Layers net;
  const auto whyNot = [&](std::shared_ptr<torch::optim::Optimizer> optimizer, Buffers buffers = Buffers::kOnce) {
    DdpOptions options;
    options.buffers = buffers;
    options.optimizerInBackward = std::move(optimizer);
    options.overlapForward = true;
    return messageOf<ArgumentError>([&] { DistributedDataParallel<Layers>(net, group, options); });
  };
  const torch::optim::SGDOptions sgd(0.1);
  EXPECT_TRUE(contains(whyNot(nullptr), "needs DdpOptions::optimizerInBackward with all trained parameters"));
  EXPECT_TRUE(contains(whyNot(std::make_shared<torch::optim::SGD>(net->last->parameters(), sgd)),
                       "needs DdpOptions::optimizerInBackward with all trained parameters"));
  EXPECT_TRUE(contains(whyNot(std::make_shared<torch::optim::SGD>(net->parameters(), sgd), Buffers::kAverage),
                       "use Buffers::kOnce"));
}

TEST(OverlapForward, ThatDiffersBetweenRanksIsNamed) {
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    const ProcessGroup group = groupOf(worker, 2);
    const std::string why = messageOf<ArgumentError>([&] { Replica<>(group, worker.self().rank == 0); });
    EXPECT_TRUE(contains(why, "DdpOptions::overlapForward true") && contains(why, "DdpOptions::overlapForward false"))
        << why;
  });
}

}  // namespace
}  // namespace treadle::test::overlap_forward_test

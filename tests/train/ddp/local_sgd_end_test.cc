// How training by LocalSgd ends where ranks have different numbers of batches, where ranks are not in step or are lost,
// and what is refused.

#include <torch/optim/adam.h>

#include <future>
#include <memory>
#include <stdexcept>

#include "tests/support/expect_error.h"
#include "tests/support/gate.h"
#include "tests/train/ddp/local_ranks.h"

namespace treadle::test::local_sgd_end_test {
namespace {

using namespace ddp_test;

// The means are those of the ranks that have trained since the last one.
void simulate(SimulatedRanks& simulated, const Counts& counts, int period) {
  for (int begin = 0; begin <= mostOf(counts); begin += period) {
    Ranks trained;
    for (size_t rank = 0; rank < counts.size(); ++rank) {
      for (int batch = begin; batch < std::min(begin + period, counts[rank]); ++batch) {
        simulated.backward({rank}, batch);
        simulated.step({rank});
      }
      if (counts[rank] > begin) trained.push_back(rank);
    }
    simulated.averageParameters(trained);
  }
}

TEST(LocalSgdEnd, IsTheSameOnRanksWithDifferentNumbersOfBatches) {
  constexpr int kPeriod = 2;
  TensorJob job(ranks(4));
  for (const Counts& counts : {Counts{5, 3, 0, 4}, Counts{0, 1, 6, 2}, Counts{2, 4, 4, 2}, Counts{0, 0, 0, 0}}) {
    SCOPED_TRACE(::testing::PrintToString(counts));
    job.onAll([&](Worker& worker) {
      const auto rank = static_cast<size_t>(worker.self().rank);
      LocalRank actual(ProcessGroup::make(worker, job.names()), {.period = kPeriod, .startAfter = 0});
      actual.local.averageState(actual.optimizer);
      for (int batch = 0; batch < counts[rank]; ++batch) actual.train(batch);
      actual.local.finish();
      actual.local.finish();  // has ended: returns at once
      SimulatedRanks expected(counts.size(), /*averagesState=*/true);
      simulate(expected, counts, kPeriod);
      expected.expectOn(rank, actual);
      actual.ddp.verifyReplicas();
    });
  }
}

TEST(LocalSgdEnd, LetsGradientsBeAveragedAgain) {
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    const auto rank = static_cast<size_t>(worker.self().rank);
    LocalRank actual(ProcessGroup::make(worker, job.names()), {.period = 2, .startAfter = 0});
    actual.local.averageState(actual.optimizer);
    actual.train(0);
    actual.local.finish();
    SimulatedRanks expected(2, /*averagesState=*/true);
    expected.backward({0, 1}, 0);
    expected.step({0, 1});
    expected.averageParameters({0, 1});
    actual.backward(1);
    actual.optimizer.step();
    expected.backward({0, 1}, 1);
    expected.averageGradients({0, 1});
    expected.step({0, 1});
    expected.expectOn(rank, actual);
    EXPECT_TRUE(contains(messageOf<StateError>([&] { actual.local.step(); }), "before finish()"));
    EXPECT_THROW(actual.local.average(), StateError);
  });
}

TEST(LocalSgdEnd, WithoutFinishFailsTheGroupOnAllRanks) {
  TensorJob job(ranks(3));
  job.onAll([&](Worker& worker) {
    const ProcessGroup group = ProcessGroup::make(worker, job.names());
    const int rank = worker.self().rank;
    const auto loop = [&] {
      LocalRank actual(group, {.period = 4, .startAfter = 0});
      actual.train(0);
      barrier(group).wait();
      if (rank == 1) throw std::runtime_error("the file has no such batch");
      actual.local.finish();
    };
    if (rank == 1) {
      EXPECT_THROW(loop(), std::runtime_error);
    } else {
      const std::string why = messageOf<StateError>(loop);
      EXPECT_TRUE(contains(why, "'rank1'")) << why;
      EXPECT_TRUE(contains(why, "has left a LocalSgd before finish() had ended well")) << why;
    }
  });
}

TEST(LocalSgdEnd, NamesALostRankOnAllRanksThatWait) {
  TensorJob job(ranks(3));
  const auto trained = [&](Worker& worker) {
    auto one = std::make_unique<LocalRank>(ProcessGroup::make(worker, job.names()),
                                           LocalSgdOptions{.period = 4, .startAfter = 0});
    one->train(0);
    return one;
  };
  Counter areWaiting;
  std::vector<std::future<void>> waiting;
  for (const size_t rank : {0U, 1U})
    waiting.push_back(std::async(std::launch::async, [&, worker = &job[rank]] {
      const auto one = trained(*worker);
      areWaiting.add();
      const std::string why = messageOf<Error>([&] { one->local.finish(); });
      EXPECT_TRUE(contains(why, "rank2")) << why;
    }));
  auto lost = std::async(std::launch::async, [&, worker = &job[2]] { return trained(*worker); });
  const std::unique_ptr<LocalRank> ofLost = lost.get();
  areWaiting.waitFor(2);
  job.kill(2);
  for (auto& one : waiting) one.get();
}

TEST(LocalSgd, NamesRanksThatHaveMadeOtherNumbersOfSteps) {
  TensorJob job(ranks(3));
  treadle::test::Counter ended;  // one that is left fails the group
  job.onAll([&](Worker& worker) {
    LocalRank actual(ProcessGroup::make(worker, job.names()), {.period = 2, .startAfter = 0});
    actual.train(0);
    const std::string why = messageOf<StateError>([&] { actual.rank == 1 ? actual.local.average() : actual.train(1); });
    EXPECT_TRUE(contains(why,
                         "worker 'rank0' (rank 0 of the group) has made 2 steps of LocalSgd, and worker 'rank1' (rank "
                         "1 of the group) 1"))
        << why;
    ended.add();
    ended.waitFor(3);
  });
}

TEST(LocalSgd, GoesOnAfterAMeanInWhichARankCannotTakePart) {
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    LocalRank actual(ProcessGroup::make(worker, job.names()), {.period = 1, .startAfter = 0});
    actual.backward(0);
    actual.optimizer.step();
    if (actual.rank == 1) {
      actual.net->first.requires_grad_(false);
      EXPECT_TRUE(contains(messageOf<StateError>([&] { actual.local.step(); }), "'first' requires no gradient"));
      actual.net->first.requires_grad_(true);
    } else {
      const Status failure = statusOf<CancelledError>([&] { actual.local.step(); });
      EXPECT_EQ(failure.worker(), "rank1");
    }
    actual.local.average();
    actual.ddp.verifyReplicas();
    actual.local.finish();
  });
}

void expectRefused(Worker& worker, const DdpOptions& ddpOptions, const LocalSgdOptions& options,
                   const std::string& text) {
  Net net(0);
  DistributedDataParallel<Net> ddp(net, ProcessGroup::make(worker, ranks(2)), ddpOptions);
  const std::string why = messageOf<ArgumentError>([&] { ddp.localSgd(options).finish(); });
  EXPECT_TRUE(contains(why, text)) << why;
}

TEST(LocalSgd, RefusesASyncBatchNorm) {
  TensorJob job(ranks(1));
  const ProcessGroup group = ProcessGroup::make(job[0], ranks(1));
  SyncBatchNorm norm(3, job[0], group);
  DistributedDataParallel<SyncBatchNorm> ddp(norm, group);
  EXPECT_TRUE(contains(messageOf<ArgumentError>([&] { ddp.localSgd().finish(); }),
                       "localSgd() without LocalSgdOptions::group cannot be used with a SyncBatchNorm"));
}

TEST(LocalSgd, RefusesOptionsThatCannotBe) {
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    const bool isFirst = worker.self().rank == 0;
    expectRefused(worker, {}, {.period = 0}, "LocalSgdOptions::period is 0");
    expectRefused(worker, {}, {.startAfter = -1}, "LocalSgdOptions::startAfter is -1");
    expectRefused(worker, {}, {.period = isFirst ? 2 : 3},
                  "rank 0 has LocalSgdOptions::period 2; rank 1 has LocalSgdOptions::period 3");
    const ProcessGroup alone = ProcessGroup::make(worker, {worker.self().name});
    expectRefused(worker, {}, {.group = alone}, "LocalSgdOptions::group has no worker");
    for (const Divisor divisor : {Divisor::kSum, Divisor::kWeights})
      expectRefused(worker, {.divisor = divisor}, {}, std::string("the divisor ") + ddp::nameOf(divisor));
    expectRefused(worker, {.hook = std::make_shared<TopKHook>()}, {}, "a hook that holds gradients back");
  });
}

TEST(LocalSgd, MayHaveAnyHookAndDivisorOverALargerGroup) {
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    const ProcessGroup all = ProcessGroup::make(worker, job.names());
    Net net(0);
    DistributedDataParallel<Net> ddp(net, ProcessGroup::make(worker, {worker.self().name}),
                                     {.divisor = Divisor::kSum, .hook = std::make_shared<TopKHook>()});
    auto local = ddp.localSgd({.period = 1, .group = all});
    lossOfBatch(*net, worker.self().rank, 0).backward();
    local.step();
    local.finish();
  });
}

TEST(LocalSgd, RefusesToBeginOrStepWhereRanksAreNotBetweenPasses) {
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    LocalRank actual(ProcessGroup::make(worker, job.names()), {.period = 1, .startAfter = 0});
    EXPECT_TRUE(
        contains(messageOf<StateError>([&] { actual.ddp.localSgd().finish(); }), "localSgd() averages nothing"));
    actual.net->bias.register_hook([&](const at::Tensor&) {
      EXPECT_TRUE(contains(messageOf<StateError>([&] { actual.local.step(); }), "is called between passes"));
    });
    actual.train(0);
    actual.local.finish();
    auto join = actual.ddp.join([] {});
    EXPECT_TRUE(contains(messageOf<StateError>([&] { actual.ddp.localSgd().finish(); }), "a guard of join()"));
    join.finish();
  });
}

TEST(LocalSgd, RefusesOptimizersThatDifferAndThoseThatComeLate) {
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    LocalRank actual(ProcessGroup::make(worker, job.names()), {.period = 1, .startAfter = 0});
    torch::optim::Adam adam(actual.net->parameters());
    const std::string why = messageOf<ArgumentError>(
        [&] { actual.rank == 0 ? actual.local.averageState(actual.optimizer) : actual.local.averageState(adam); });
    EXPECT_TRUE(contains(why, "torch::optim::Adam") && contains(why, "torch::optim::SGD")) << why;
    actual.train(0);
    EXPECT_TRUE(contains(messageOf<StateError>([&] { actual.local.averageState(adam); }), "before the first step"));
    actual.local.finish();
  });
}

}  // namespace
}  // namespace treadle::test::local_sgd_end_test

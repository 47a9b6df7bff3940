// How a loop under join() ends where ranks have different numbers of batches, where passes fail and ranks are lost, and
// what is refused while its guard lives.

#include <future>
#include <optional>
#include <stdexcept>
#include <tuple>

#include "tests/support/expect_error.h"
#include "tests/support/gate.h"
#include "tests/train/ddp/uneven.h"

namespace treadle::test::join_end_test {
namespace {

using namespace ddp_test;

constexpr const char* kOver = "the guard of join() is over";

TEST(JoinThatThrows, NamesTheRanksWithoutABatchOnAllRanks) {
  const Counts counts = {3, 1, 2, 1};
  TensorJob job(ranks(4));
  std::vector<std::vector<at::Tensor>> ofRanks(counts.size());
  job.onAll([&](Worker& worker) {
    const auto rank = static_cast<size_t>(worker.self().rank);
    Trained trained(ProcessGroup::make(worker, job.names()), smallBuckets());
    {
      auto join = trained.join(UnevenInputs::kThrow);
      const std::string why = messageOf<StateError>([&] {
        for (int batch = 0; batch < counts[rank]; ++batch) trained.train(batch);
        join.finish();
      });
      EXPECT_TRUE(contains(why, "no batch is left on 'rank1' (rank 1), 'rank3' (rank 3)")) << why;
      EXPECT_FALSE(contains(why, "'rank0'")) << why;
      EXPECT_TRUE(join.isOver());
      EXPECT_TRUE(contains(messageOf<StateError>([&] { trained.backward(0); }), kOver));
      trained.optimizer.zero_grad();
      join.finish();
    }
    EXPECT_EQ(trained.steps, 1);
    ofRanks[rank] = trained.state();
    trained.ddp.verifyReplicas();  // the group is of use
    trained.train(8);
  });
  expectTrainedAs(trainedAlone(counts, Divisor::kWorldSize, 1), ofRanks);
}

TEST(JoinThatThrows, DoesNotWhereRanksHaveAsManyBatches) {
  for (const UnevenInputs atEnd : {UnevenInputs::kThrow, UnevenInputs::kStopAtFirst}) {
    const Counts counts = {2, 2};
    TensorJob job(ranks(2));
    std::vector<std::vector<at::Tensor>> ofRanks(counts.size());
    job.onAll([&](Worker& worker) {
      const auto rank = static_cast<size_t>(worker.self().rank);
      Trained trained(ProcessGroup::make(worker, job.names()), smallBuckets());
      auto join = trained.join(atEnd);
      for (int batch = 0; batch < counts[rank]; ++batch) trained.train(batch);
      join.finish();
      EXPECT_EQ(trained.steps, 2);
      ofRanks[rank] = trained.state();
    });
    expectTrainedAs(trainedAlone(counts, Divisor::kWorldSize, 2), ofRanks);
  }
}

// By counts, the last of which ends first, and whether passes have several rounds.
class JoinThatStops : public ::testing::TestWithParam<std::tuple<Counts, bool>> {};

TEST_P(JoinThatStops, DropsTheFirstIncompletePassOnAllRanks) {
  const auto& [counts, hasHook] = GetParam();
  const int least = *std::min_element(counts.begin(), counts.end());
  TensorJob job(ranks(static_cast<int>(counts.size())));
  std::vector<std::vector<at::Tensor>> ofRanks(counts.size());
  job.onAll([&, counts = counts, hasHook = hasHook](Worker& worker) {
    const auto rank = static_cast<size_t>(worker.self().rank);
    DdpOptions options = smallBuckets();
    options.buffers = Buffers::kFromRank0;  // another operation, which is left out too
    const auto hook = std::make_shared<PowerSgdHook>(PowerSgdOptions{.rank = 1, .startAfter = 0});
    if (hasHook) options.hook = hook;
    Trained trained(ProcessGroup::make(worker, job.names()), options);
    {
      auto join = trained.join(UnevenInputs::kStopAtFirst);
      for (int batch = 0; batch < counts[rank]; ++batch) {
        const OptimizerState before = hook->state();
        trained.optimizer.zero_grad();
        trained.backward(batch);
        EXPECT_EQ(join.isOver(), batch == least);
        if (join.isOver()) {
          EXPECT_FALSE(trained.hasGradients());
          const std::vector<at::Tensor> state = trained.state();
          trained.optimizer.step();  // a loop that does not look at isOver()
          expectEqualBits(trained.state(), state);
          for (const auto& [name, tensor] : hook->state()) {
            if (name == "power_sgd.passes") continue;
            EXPECT_TRUE(haveEqualBits(tensor, before.at(name))) << name;
          }
          EXPECT_TRUE(contains(messageOf<StateError>([&] { trained.backward(batch); }), kOver));
          break;
        }
        trained.step();
      }
      join.finish();
      EXPECT_EQ(trained.steps, least);
      EXPECT_FALSE(trained.hasGradients());
    }
    ofRanks[rank] = trained.state();
    trained.ddp.verifyReplicas();
    trained.train(8);  // the group is of use
  });
  if (hasHook) {
    for (const auto& one : ofRanks) expectEqualBits(one, ofRanks.front());
  } else {
    expectTrainedAs(trainedAlone(counts, Divisor::kWorldSize, least), ofRanks);
  }
}

INSTANTIATE_TEST_SUITE_P(Counts, JoinThatStops,
                         ::testing::Combine(::testing::Values(Counts{3, 5, 2, 4}, Counts{1, 3, 3}, Counts{2, 0, 1}),
                                            ::testing::Bool()));

// Its next pass comes to the others as any pass does.
TEST(Join, GoesOnAfterAPassThatFailsOnARankWithABatch) {
  const Counts counts = {0, 2};
  TensorJob job(ranks(2));
  std::vector<std::vector<at::Tensor>> ofRanks(counts.size());
  job.onAll([&](Worker& worker) {
    const auto rank = static_cast<size_t>(worker.self().rank);
    Trained trained(ProcessGroup::make(worker, job.names()), smallBuckets());
    auto join = trained.join();
    if (rank == 0) {
      EXPECT_TRUE(contains(messageOf<CancelledError>([&] { join.finish(); }), "failed on worker 'rank1'"));
      EXPECT_FALSE(join.isOver());
    } else {
      const at::Tensor input = Broken::apply(inputOf(1, 0).requires_grad_());
      EXPECT_THROW(trained.ddp.forward(input, false).square().sum().backward(), std::exception);
      for (int batch = 0; batch < counts[rank]; ++batch) trained.train(batch);
    }
    join.finish();
    EXPECT_EQ(trained.steps, 2);
    ofRanks[rank] = trained.state();
  });
  expectTrainedAs(trainedAlone(counts, Divisor::kWorldSize, 2), ofRanks);
}

// Rank 0 learns the reason at once.
TEST(Join, ThatIsLeftByAnExceptionFailsTheGroupOnAllRanks) {
  TensorJob job(ranks(3));
  Counter inGuard;
  job.onAll([&](Worker& worker) {
    const int rank = worker.self().rank;
    Trained trained(ProcessGroup::make(worker, job.names()), smallBuckets());
    const auto loop = [&] {
      auto join = trained.join();
      inGuard.add();
      if (rank == 1) {
        inGuard.waitFor(3);
        throw std::runtime_error("the file has no such batch");
      }
      if (rank == 2) trained.train(0);
      join.finish();
    };
    if (rank == 1) {
      EXPECT_THROW(loop(), std::runtime_error);
    } else {
      const std::string why = messageOf<StateError>(loop);
      EXPECT_TRUE(contains(why, "'rank1'")) << why;
      EXPECT_TRUE(contains(why, "has left a guard of join() before finish() had ended well")) << why;
    }
    EXPECT_EQ(trained.steps, 0);
  });
}

struct InGuard {
  InGuard(Worker& worker, const std::vector<std::string>& names)
      : trained(ProcessGroup::make(worker, names), smallBuckets()), join(trained.join()) {}
  Trained trained;
  ddp::Join join;
};

TEST(Join, NamesALostRankOnAllRanksThatWait) {
  TensorJob job(ranks(3));
  const auto trains = [&](Worker& worker) {
    auto one = std::make_unique<InGuard>(worker, job.names());
    one->trained.train(0);
    return one;
  };
  const auto expectLost = [&](const std::function<void()>& waits) {
    const std::string why = messageOf<Error>(waits);
    EXPECT_TRUE(contains(why, "rank2")) << why;
  };
  Counter stepped;
  auto withoutBatch = std::async(std::launch::async, [&, worker = &job[0]] {
    Trained trained(ProcessGroup::make(*worker, job.names()), smallBuckets());
    auto join = trained.ddp.join([&] { stepped.add(); });
    expectLost([&] { join.finish(); });
  });
  auto withBatches = std::async(std::launch::async, [&, worker = &job[1]] {
    const auto one = trains(*worker);
    stepped.add();
    expectLost([&] { one->trained.train(1); });
  });
  auto lost = std::async(std::launch::async, [&, worker = &job[2]] { return trains(*worker); });
  const std::unique_ptr<InGuard> ofLost = lost.get();
  stepped.waitFor(2);
  job.kill(2);
  withoutBatch.get();
  withBatches.get();
}

TEST(Join, RefusesWhatRanksWithoutABatchWouldNotTakePartIn) {
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    Trained trained(ProcessGroup::make(worker, job.names()), smallBuckets());
    EXPECT_THROW(trained.ddp.join(nullptr).finish(), ArgumentError);
    auto join = trained.join();
    EXPECT_TRUE(contains(messageOf<StateError>([&] { trained.join().finish(); }), "lives already"));
    EXPECT_TRUE(contains(messageOf<StateError>([&] { trained.ddp.agreeToSkip(false); }), "agreeToSkip cannot be"));
    EXPECT_TRUE(contains(messageOf<StateError>([&] { trained.ddp.verifyReplicas(); }), "verifyReplicas cannot be"));
    {
      auto unaveraged = trained.ddp.noSync();
      EXPECT_TRUE(contains(messageOf<StateError>([&] { join.finish(); }), "finish() averages nothing"));
    }
    trained.train(0);
    join.finish();
    EXPECT_FALSE(trained.ddp.agreeToSkip(false));
  });
}

TEST(Join, RefusesDistributedPassesOnAllRanks) {
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    Trained trained(ProcessGroup::make(worker, job.names()), smallBuckets());
    auto join = trained.join();
    if (trained.rank == 0) {
      AutogradContext context(worker);
      const at::Tensor loss = lossOfBatch(*trained.net, 0, 0);
      EXPECT_TRUE(contains(messageOf<StateError>([&] { context.backward({loss}); }), "a distributed backward pass"));
    } else {
      EXPECT_THROW(trained.backward(0), CancelledError);
    }
    trained.train(1);
    join.finish();
    trained.ddp.verifyReplicas();
  });
}

// A rank without a batch has cleared its average, so the sum would be another one than with it.
TEST(Join, RefusesAveragesThatWereNotCleared) {
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    Trained trained(ProcessGroup::make(worker, job.names()), smallBuckets());
    auto join = trained.join();
    trained.backward(0);
    const std::string why = messageOf<StateError>([&] { trained.backward(1); });
    EXPECT_TRUE(contains(why, "and join() would count them wrong")) << why;
    trained.train(1);
    join.finish();
    trained.ddp.verifyReplicas();
  });
}

TEST(Join, WithAnotherModeOnARankFailsOnAll) {
  TensorJob job(ranks(3));
  Counter ended;  // a guard that is left fails the group
  job.onAll([&](Worker& worker) {
    Trained trained(ProcessGroup::make(worker, job.names()), smallBuckets());
    std::optional<ddp::Join> join;
    if (trained.rank != 1) join.emplace(trained.join(UnevenInputs::kThrow));
    const std::string why = messageOf<StateError>([&] { trained.backward(0); });
    EXPECT_TRUE(contains(why,
                         "worker 'rank0' (rank 0) is in a guard of join() with UnevenInputs::kThrow, and worker "
                         "'rank1' (rank 1) is in no guard of join()"))
        << why;
    ended.add();
    ended.waitFor(3);
  });
}

TEST(Join, RefusesAModuleWithASyncBatchNorm) {
  struct Normed : torch::nn::Module {
    Normed(Worker& worker, const ProcessGroup& group)
        : norm(register_module("norm", SyncBatchNorm(3, worker, group))) {}
    SyncBatchNorm norm;
  };
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    const ProcessGroup group = ProcessGroup::make(worker, job.names());
    DistributedDataParallel<Normed> ddp(std::make_shared<Normed>(worker, group), group);
    const std::string why = messageOf<ArgumentError>([&] { auto join = ddp.join([] {}); });
    EXPECT_TRUE(contains(why, "SyncBatchNorm ('norm')")) << why;
    DistributedDataParallel<SyncBatchNorm> itself(SyncBatchNorm(3, worker, group), group);
    EXPECT_THROW(auto join = itself.join([] {}), ArgumentError);
  });
}

TEST(ExactChannel, CarriesWhetherAndHowEachRankJoins) {
  using enum UnevenInputs;
  const std::vector<std::optional<UnevenInputs>> modes = {std::nullopt, kContinue, kThrow, kStopAtFirst};
  TensorJob job(ranks(4));
  job.onAll([&](Worker& worker) {
    const auto rank = static_cast<size_t>(worker.self().rank);
    const ProcessGroup group = ProcessGroup::make(worker, job.names());
    ddp::ExactChannel channel(group, 2, 1, /*carriesOrder=*/false);
    for (const size_t shift : {0U, 1U, 2U}) {
      channel.renew();
      const ddp::JoinReport own{.mode = modes[(rank + shift) % 4], .isDone = (rank + shift) % 3 == 0};
      channel.send({.active = rank == 1, .weight = 0.5, .join = own}).wait();
      for (size_t other = 0; other < 4; ++other) {
        const ddp::RankReport report = channel.reports()[other];
        EXPECT_EQ(report.join.mode, modes[(other + shift) % 4]);
        EXPECT_EQ(report.join.isDone, (other + shift) % 3 == 0);
        EXPECT_EQ(report.active, other == 1);
        EXPECT_FALSE(report.failed);
      }
    }
  });
}

}  // namespace
}  // namespace treadle::test::join_end_test

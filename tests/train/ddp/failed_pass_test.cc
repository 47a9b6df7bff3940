// A pass that fails on one rank fails on all, whenever it does, and the next one is right.

#include <algorithm>
#include <limits>
#include <optional>
#include <stdexcept>
#include <utility>

#include "tests/train/ddp/apart.h"

namespace treadle::test::ddp_test {
namespace {

// What a failed pass had gathered must not find its way into the next.
TEST(DistributedDataParallel, AFailedPassLeavesNothingToTheNext) {
  TensorJob job(ranks(1));
  Worker& worker = job[0];
  Net net(0), alone(0);
  DistributedDataParallel<Net> ddp(net, ProcessGroup::make(worker, job.names()), smallBuckets());
  at::Tensor input = inputOf(0, 0).requires_grad_();
  at::Tensor loss = (Broken::apply(input).mm(net->first) + net->bias).mm(net->last).square().mean();
  EXPECT_THROW(loss.backward(), std::runtime_error);
  net->zero_grad();
  ddp.forward(inputOf(0, 1), true).square().mean().backward();
  alone->forward(inputOf(0, 1), true).square().mean().backward();
  for (const std::string name : {"first", "bias", "last"})
    EXPECT_TRUE(close(net->named_parameters()[name].grad(), alone->named_parameters()[name].grad())) << name;
}

// Rank 0 leaves out a batch over which its pass fails, when some of its buckets have gone already.
TEST(DistributedDataParallel, APassThatFailsOnOneRankFailsOnAllAndTheNextIsRight) {
  TensorJob job(ranks(2));
  Net alone(0);
  at::Tensor whole = at::cat({inputOf(0, 1), inputOf(1, 1)});
  alone->forward(whole, false).square().mean().backward();
  job.onAll([&](Worker& worker) {
    int rank = worker.self().rank;
    Net net(0);
    DistributedDataParallel<Net> ddp(net, ProcessGroup::make(worker, job.names()), smallBuckets());
    bool bad = rank == 0;
    net->bias.register_hook([&](const at::Tensor&) {
      if (std::exchange(bad, false)) throw std::runtime_error("a bad batch");
    });
    at::Tensor first = ddp.forward(inputOf(rank, 0), false).square().mean();
    if (rank == 0) {
      EXPECT_THROW(first.backward(), std::runtime_error);
    } else {
      EXPECT_THROW(first.backward(), CancelledError);
    }
    net->zero_grad();
    ddp.forward(inputOf(rank, 1), false).square().mean().backward();
    for (const auto& entry : alone->named_parameters())
      EXPECT_TRUE(close(net->named_parameters()[entry.key()].grad(), entry.value().grad())) << entry.key();
  });
}

// The node that fails is behind all parameters: by then the others have all averages of this rank's gradients.
class AfterTheLastBucket : public ::testing::TestWithParam<bool> {};

TEST_P(AfterTheLastBucket, AFailureFailsThePassOnAllRanks) {
  TensorJob job(ranks(3));
  Net alone(0);
  alone->forward(at::cat({inputOf(0, 1), inputOf(1, 1), inputOf(2, 1)}), false).square().mean().backward();
  job.onAll([&](Worker& worker) {
    const int rank = worker.self().rank;
    Net net(0);
    DistributedDataParallel<Net> ddp(net, ProcessGroup::make(worker, job.names()), smallBuckets());
    // The gradients of the last pass.
    std::optional<AutogradContext> context;
    auto backward = [&](const at::Tensor& loss) {
      if (!GetParam()) return loss.backward();
      context.reset();
      context.emplace(worker).backward({loss});
    };
    const at::Tensor input = inputOf(rank, 0).requires_grad_();
    const at::Tensor loss = ddp.forward(rank == 1 ? Broken::apply(input) : input, false).square().mean();
    if (rank == 1) {
      EXPECT_THROW(backward(loss), std::exception);
    } else {
      const Status failure = statusOf<CancelledError>([&] { backward(loss); });
      EXPECT_TRUE(contains(failure.message(), "failed on worker 'rank1' (rank 1 of the group)"));
      EXPECT_EQ(failure.worker(), "rank1");
    }
    net->zero_grad();
    backward(ddp.forward(inputOf(rank, 1), false).square().mean());
    for (const auto& entry : alone->named_parameters()) {
      const at::Tensor parameter = net->named_parameters()[entry.key()];
      EXPECT_TRUE(close(context ? context->gradient(parameter) : parameter.grad(), entry.value().grad()))
          << entry.key();
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Passes, AfterTheLastBucket, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "distributed" : "local"; });

// The replica goes with the scope in which its pass failed.
TEST(DestroyedReplica, OfAFailedPassLeavesNoRankWaiting) {
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    const int rank = worker.self().rank;
    const ProcessGroup group = ProcessGroup::make(worker, job.names());
    auto pass = [&] {
      Net net(0);
      DistributedDataParallel<Net> ddp(net, group, smallBuckets());
      const at::Tensor input = inputOf(rank, 0).requires_grad_();
      ddp.forward(rank == 0 ? Broken::apply(input) : input, false).square().mean().backward();
    };
    if (rank == 0) {
      EXPECT_THROW(pass(), std::runtime_error);
    } else {
      EXPECT_EQ(statusOf<CancelledError>(pass).worker(), "rank0");
    }
  });
}

// Half of its gradients have come. They stay this rank's own.
TEST(DestroyedReplica, WithinItsPassGivesThePassUp) {
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    const int rank = worker.self().rank;
    Net net(0);
    std::optional<DistributedDataParallel<Net>> ddp;
    ddp.emplace(net, ProcessGroup::make(worker, job.names()), smallBuckets());
    at::Tensor loss = ddp->forward(inputOf(rank, 0), false).square().mean();
    if (rank == 0) {
      net->bias.register_hook([&](const at::Tensor&) { ddp.reset(); });
      loss.backward();
    } else {
      EXPECT_EQ(statusOf<CancelledError>([&] { loss.backward(); }).worker(), "rank0");
    }
  });
}

// On rank 1 another callback throws when the averages are there. A pass that is not averaged comes in between.
TEST(FailedPass, IsNotCountedByALaterOneUnderNoSync) {
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    const int rank = worker.self().rank;
    Net net(0), alone(0);
    alone->forward(at::cat({inputOf(0, 0), inputOf(1, 0)}), false).square().mean().backward();
    DistributedDataParallel<Net> ddp(net, ProcessGroup::make(worker, job.names()), smallBuckets());
    bool fails = rank == 1;
    net->bias.register_hook([&](const at::Tensor&) {
      if (std::exchange(fails, false)) throwAfter(3);
    });
    const auto pass = [&](int step) {
      net->zero_grad();
      ddp.forward(inputOf(rank, step), false).square().mean().backward();
    };
    if (rank == 1) {
      EXPECT_THROW(pass(0), std::runtime_error);
    } else {
      pass(0);
    }
    EXPECT_TRUE(close(net->first.grad(), alone->first.grad())) << "it fails after the averages are put";
    {
      const auto unaveraged = ddp.noSync();
      pass(1);
    }
    expectApartAndRebind(ddp, worker, "rank1", [&] { pass(2); });
    pass(3);
  });
}

// Weights are copied bit by bit, with the marks of all ranks beside them. Times are rounded down to microseconds.
TEST(ExactChannel, GivesAllRanksTheSameAccount) {
  TensorJob job(ranks(3));
  job.onAll([&](Worker& worker) {
    const int rank = worker.self().rank;
    ddp::ExactChannel channel(ProcessGroup::make(worker, job.names()), 3, 3, /*carriesOrder=*/false);
    for (int round = 0; round < 2; ++round) {
      EXPECT_FALSE(channel.anyUsed());
      if (rank > 0) channel.markUsed(static_cast<size_t>(rank));
      if (rank == 2) channel.markAgain(0);
      const Duration elapsed[] = {std::chrono::nanoseconds(1999), std::chrono::hours(72), std::chrono::seconds(round)};
      channel.send({.active = rank != 1, .weight = rank / 3.0 + round, .elapsed = elapsed[rank]}).wait();
      for (size_t i = 0; i < 3; ++i) {
        EXPECT_EQ(channel.used(i), i > 0);
        EXPECT_EQ(channel.again(i), i == 0);
        const ddp::RankReport report = channel.reports()[i];
        EXPECT_EQ(report.weight, static_cast<double>(i) / 3.0 + round);
        EXPECT_EQ(report.active, i != 1);
        const Duration most = std::chrono::microseconds(std::numeric_limits<uint32_t>::max());
        EXPECT_EQ(report.elapsed, std::min<Duration>(most, elapsed[i] - elapsed[i] % std::chrono::microseconds(1)));
        EXPECT_FALSE(report.failed);
      }
      EXPECT_TRUE(channel.anyUsed());
      EXPECT_TRUE(channel.outcome().ok());
      channel.renew();
    }
  });
}

TEST(ExactChannel, NamesTheFirstRankThatFailedAndCountsTheOthers) {
  TensorJob job(ranks(3));
  job.onAll([&](Worker& worker) {
    ddp::ExactChannel channel(ProcessGroup::make(worker, job.names()), 2, 1, /*carriesOrder=*/false);
    channel.send({.failed = worker.self().rank > 0}).wait();
    const Status outcome = channel.outcome();
    EXPECT_TRUE(contains(outcome.message(), "failed on worker 'rank1' (rank 1 of the group) and on 1 more"));
    EXPECT_EQ(outcome.worker(), "rank1");
  });
}

TEST(ExactChannel, NamesARankThatHasHadFewerAverages) {
  TensorJob job(ranks(4));
  job.onAll([&](Worker& worker) {
    const ProcessGroup group = ProcessGroup::make(worker, job.names());
    constexpr uint64_t kMany = (uint64_t{1} << 32) + 1;
    const auto checkWith = [&](const std::vector<uint64_t>& averages) {
      ddp::ExactChannel channel(group, 2, 1, /*carriesOrder=*/false);
      channel.send({.averages = averages[static_cast<size_t>(worker.self().rank)]}).wait();
      return channel.checkSameAverages();
    };
    EXPECT_TRUE(checkWith({kMany, kMany, kMany, kMany}).ok());
    const Status apart = checkWith({2, kMany, 1, 1});
    EXPECT_EQ(apart.worker(), "rank2");
    EXPECT_TRUE(contains(apart.message(), "'rank2' (rank 2 of the group) has made 1 averaged passes"))
        << apart.message();
    EXPECT_TRUE(contains(apart.message(), "'rank1' (rank 1 of the group) has made 4294967297")) << apart.message();
  });
}

}  // namespace
}  // namespace treadle::test::ddp_test

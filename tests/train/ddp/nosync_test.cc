// Passes under noSync() are left out of the averaging, and the next one that is not averages them too.

#include <functional>
#include <optional>

#include "tests/support/kept_gradient.h"
#include "tests/train/ddp/net.h"

namespace treadle::test::ddp_test {
namespace {

// The steps of one accumulation: all but the last are not averaged. Only the second uses `skipped`.
constexpr int kSteps = 3;
bool skips(int step) { return step != 1; }

using Loss = std::function<at::Tensor(int step)>;
using Backward = std::function<void(const at::Tensor& loss)>;

void accumulate(DistributedDataParallel<Net>& ddp, const Loss& loss, const Backward& backward) {
  {
    auto unaveraged = ddp.noSync();
    for (int step = 0; step < kSteps - 1; ++step) backward(loss(step));
  }
  backward(loss(kSteps - 1));
}

// The gradients of one process over all batches of `size` ranks. `skip` says who leaves out `skipped` in which step.
Net alone(int size, const std::function<bool(int rank, int step)>& skip, int steps = kSteps) {
  Net net(0);
  for (int rank = 0; rank < size; ++rank)
    for (int step = 0; step < steps; ++step)
      net->forward(inputOf(rank, step), skip(rank, step)).square().mean().div(size).backward();
  return net;
}

Backward plain() {
  return [](const at::Tensor& loss) { loss.backward(); };
}
Backward within(AutogradContext& context) {
  return [&](const at::Tensor& loss) { context.backward({loss}); };
}

void expectGradients(const AutogradContext* context, const Net& actual, const Net& expected) {
  for (const auto& entry : expected->named_parameters()) {
    const at::Tensor parameter = actual->named_parameters()[entry.key()];
    const at::Tensor gradient = context ? context->gradient(parameter) : parameter.grad();
    const at::Tensor& wanted = entry.value().grad();
    EXPECT_TRUE(wanted.defined() ? close(gradient, wanted) : ::testing::AssertionResult(!gradient.defined()))
        << entry.key();
    EXPECT_FALSE(context && parameter.grad().defined()) << entry.key();
  }
}

// A job of a few ranks, each with a replica, and a context if so told.
class NoSync : public ::testing::TestWithParam<bool> {
 protected:
  struct Rank {
    int rank;
    Net net;
    DistributedDataParallel<Net>& ddp;
    std::optional<AutogradContext> context;
    Backward backward;
    at::Tensor loss(int step, bool skip) { return ddp.forward(inputOf(rank, step), skip).square().mean(); }
    void expect(const Net& expected) { expectGradients(context ? &*context : nullptr, net, expected); }
  };

  template <class Body>
  void onAll(int size, Body body) {
    TensorJob job(ranks(size));
    job.onAll([&](Worker& worker) {
      Net net(0);
      DistributedDataParallel<Net> ddp(net, ProcessGroup::make(worker, job.names()), smallBuckets());
      Rank rank{worker.self().rank, net, ddp, {}, plain()};
      if (GetParam()) rank.backward = within(rank.context.emplace(worker));
      body(rank);
    });
  }
};

// One parameter gets its gradient only in a pass that is not averaged.
TEST_P(NoSync, ThreeBatchesInOneExchangeAreThoseOfOneProcess) {
  for (int size : {1, 2, 3}) {
    const Net expected = alone(size, [](int, int step) { return skips(step); });
    onAll(size, [&](Rank& rank) {
      accumulate(rank.ddp, [&](int step) { return rank.loss(step, skips(step)); }, rank.backward);
      rank.expect(expected);
    });
  }
}

TEST_P(NoSync, AParameterUsedOnOneRankAloneIsAveragedToo) {
  auto skip = [](int rank, int step) { return rank != 0 || step != 0; };
  const Net expected = alone(2, skip);
  onAll(2, [&](Rank& rank) {
    accumulate(rank.ddp, [&](int step) { return rank.loss(step, skip(rank.rank, step)); }, rank.backward);
    rank.expect(expected);
  });
}

// What was averaged stays so through the passes that follow, averaged or not.
TEST_P(NoSync, AccumulatesOverSeveralExchanges) {
  const Net expected = alone(2, [](int rank, int step) { return (rank + step) % 2 == 0; }, 5);
  onAll(2, [&](Rank& rank) {
    for (int step = 0; step < 5; ++step) {
      std::optional<ddp::NoSync> unaveraged;
      if (step == 1 || step == 3) unaveraged.emplace(rank.ddp.noSync());
      rank.backward(rank.loss(step, (rank.rank + step) % 2 == 0));
    }
    rank.expect(expected);
  });
}

// Rank 1 makes no pass: nothing waits for it.
TEST_P(NoSync, GradientsStayTheRanksOwnAndNothingIsSent) {
  onAll(2, [&](Rank& rank) {
    if (rank.rank == 1) return;
    auto outer = rank.ddp.noSync();
    {
      auto inner = rank.ddp.noSync();
      auto moved = std::move(inner);
      rank.backward(rank.loss(0, false));
    }
    rank.backward(rank.loss(1, true));  // the outer one still lives
    Net own(0);
    for (int step : {0, 1}) own->forward(inputOf(0, step), step == 1).square().mean().backward();
    rank.expect(own);
  });
}

// Half of a bad batch is in `.grad`; with that taken away nothing is left of it.
TEST(NoSyncFailures, APassThatFailsUnaveragedIsKnownToNobody) {
  const Net expected = alone(2, [](int, int step) { return skips(step); });
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    const int rank = worker.self().rank;
    Net net(0);
    DistributedDataParallel<Net> ddp(net, ProcessGroup::make(worker, job.names()), smallBuckets());
    if (rank == 0) {
      auto unaveraged = ddp.noSync();
      at::Tensor input = inputOf(0, 0).requires_grad_();
      at::Tensor loss = (Broken::apply(input).mm(net->first) + net->bias).mm(net->last).square().mean();
      EXPECT_THROW(loss.backward(), std::runtime_error);
      EXPECT_TRUE(net->last.grad().defined());
      net->zero_grad();
    }
    accumulate(ddp, [&](int step) { return ddp.forward(inputOf(rank, step), skips(step)).square().mean(); }, plain());
    expectGradients(nullptr, net, expected);
  });
}

// The average would take the place of what the context held: it does not when there is none.
TEST(NoSyncFailures, AFailedPassLeavesTheContextWhatItHad) {
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    const int rank = worker.self().rank;
    Net net(0), own(0);
    DistributedDataParallel<Net> ddp(net, ProcessGroup::make(worker, job.names()), smallBuckets());
    own->forward(inputOf(rank, 0), false).square().mean().backward();
    AutogradContext context(worker);
    {
      auto unaveraged = ddp.noSync();
      context.backward({ddp.forward(inputOf(rank, 0), false).square().mean()});
    }
    at::Tensor input = rank == 0 ? Broken::apply(inputOf(0, 1).requires_grad_()) : inputOf(1, 1);
    EXPECT_THROW(context.backward({ddp.forward(input, true).square().mean()}), Error);
    for (const auto& entry : own->named_parameters()) {
      const at::Tensor parameter = net->named_parameters()[entry.key()];
      EXPECT_TRUE(close(keptGradient(worker, context.id(), parameter), entry.value().grad())) << entry.key();
      EXPECT_FALSE(parameter.grad().defined()) << entry.key();
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Passes, NoSync, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "distributed" : "local"; });

// A model with a part on a server, of which one rank uses other parameters than the other, and neither all.
at::Tensor scaled(const at::Tensor& hidden) { return (hidden * 3).sin(); }

TEST(DistributedDataParallel, WithARemotePartAndUnusedParametersEqualsOneProcess) {
  TensorJob job({"rank0", "rank1", "server"}, Functions().add<&scaled>("scaled"));
  auto skip = [](int rank, int step) { return (rank + step) % 2 == 0 || step == 2; };
  auto lossOf = [&](const Net& net, int rank, int step, auto part) {
    at::Tensor hidden = part(at::tanh(inputOf(rank, step).mm(net->first) + net->bias));
    return (skip(rank, step) ? hidden : part(hidden.mm(net->skipped))).mm(net->last).square().mean();
  };
  Net expected(0);
  for (int rank : {0, 1})
    for (int step = 0; step < kSteps; ++step) lossOf(expected, rank, step, scaled).div(2).backward();
  job.onAll([&](Worker& worker) {
    const int rank = worker.self().rank;
    if (rank == 2) return;
    Net net(0);
    DistributedDataParallel<Net> ddp(net, ProcessGroup::make(worker, ranks(2)), smallBuckets());
    for (bool averagedOnce : {false, true}) {
      AutogradContext context(worker);
      auto there = [&](const at::Tensor& hidden) { return worker.call<&scaled>("server", hidden); };
      auto loss = [&](int step) { return lossOf(net, rank, step, there); };
      if (averagedOnce) {
        accumulate(ddp, loss, within(context));
      } else {
        for (int step = 0; step < kSteps; ++step) context.backward({loss(step)});
      }
      expectGradients(&context, net, expected);
    }
  });
}

}  // namespace
}  // namespace treadle::test::ddp_test

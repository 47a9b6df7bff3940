// Whatever a program does in the `step` that it gives to join(), and with the guard, all ranks end alike, or with an
// error.

#include <treadle/amp.h>
#include <treadle/optim.h>

#include <limits>
#include <optional>
#include <stdexcept>

#include "tests/support/expect_error.h"
#include "tests/support/gate.h"
#include "tests/train/ddp/uneven.h"

namespace treadle::test::join_step_test {
namespace {

using namespace ddp_test;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// A parameter has other strides than its place in a bucket.
struct ScaledImpl : torch::nn::Module {
  ScaledImpl() {
    weight = register_parameter("weight", random({6, 5}, 1).to(at::kFloat).t());
    last = register_parameter("last", random({6, 3}, 2).to(at::kFloat));
  }
  at::Tensor forward(const at::Tensor& input) { return at::tanh(input.mm(weight)).mm(last).square().sum(); }
  at::Tensor weight, last;
};
TORCH_MODULE(Scaled);

// Rank 1 has an infinite loss while rank 0 has no batch.
TEST(JoinStep, OfAScalerAScheduleAndClippingLeavesAllRanksAlike) {
  constexpr int kInfiniteStep = 2;
  const Counts counts = {1, 5};
  TensorJob job(ranks(2));
  std::vector<std::vector<at::Tensor>> ofRanks(counts.size());
  job.onAll([&](Worker& worker) {
    const int rank = worker.self().rank;
    Scaled net;
    const ProcessGroup group = ProcessGroup::make(worker, job.names());
    DistributedDataParallel<Scaled> ddp(net, group, smallBuckets());
    torch::optim::SGD optimizer(net->parameters(), sgdOfUneven());
    GradScaler scaler(group, {.initialScale = 8, .growthInterval = 2});
    std::vector<at::Tensor> norms;
    const auto step = [&] {
      scaler.unscale(optimizer);
      norms.push_back(at::tensor(clipGradNorm(*net, 0.5), at::kDouble));
      scaler.step(optimizer);
      scaler.update();
      auto& options = static_cast<torch::optim::SGDOptions&>(optimizer.param_groups()[0].options());
      options.lr(options.lr() * 0.9);
    };
    auto join = ddp.join(step);
    for (int batch = 0; batch < counts[static_cast<size_t>(rank)]; ++batch) {
      optimizer.zero_grad();
      const at::Tensor input = inputOf(rank, batch).to(at::kFloat);
      scaler.scale(ddp.forward(batch == kInfiniteStep ? input * kInfinity : input)).backward();
      step();
    }
    join.finish();
    EXPECT_EQ(norms.size(), 5U);
    EXPECT_EQ(scaler.currentScale(), 16) << "x 2, x 0.5, x 2";
    std::vector<at::Tensor>& own = ofRanks[static_cast<size_t>(rank)];
    own = norms;
    own.push_back(
        at::tensor(static_cast<torch::optim::SGDOptions&>(optimizer.param_groups()[0].options()).lr(), at::kDouble));
    for (const at::Tensor& tensor : stateAfter(*net, optimizer)) own.push_back(tensor);
    for (const auto& [name, tensor] : scaler.state()) own.push_back(tensor);
    ddp.verifyReplicas();
  });
  expectEqualBits(ofRanks[0], ofRanks[1]);
}

// So that what is computed from the averages is computed in the same order.
TEST(JoinStep, FindsGradientsWithTheStridesOfTheirParameters) {
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    Scaled net;
    DistributedDataParallel<Scaled> ddp(net, ProcessGroup::make(worker, job.names()), smallBuckets());
    const auto expectStrides = [&] {
      for (const at::Tensor& parameter : net->parameters()) EXPECT_EQ(parameter.grad().strides(), parameter.strides());
    };
    auto join = ddp.join(expectStrides);
    if (worker.self().rank == 1) {
      ddp.forward(inputOf(1, 0).to(at::kFloat)).backward();
      expectStrides();
    }
    join.finish();
  });
}

// A loop that accumulates, and leaves its guard alive between steps: finish() would wait for nobody.
TEST(JoinStep, ThatLeavesAGuardOfNoSyncIsAnError) {
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    Trained trained(ProcessGroup::make(worker, job.names()), smallBuckets());
    std::optional<ddp::NoSync> unaveraged;
    const auto train = [&] {
      auto join = trained.ddp.join([&] { unaveraged.emplace(trained.ddp.noSync()); });
      if (trained.rank == 1)
        for (int batch = 0; batch < 3; ++batch) trained.train(batch);
      join.finish();
    };
    const std::string why = messageOf<StateError>(train);
    EXPECT_TRUE(contains(why, trained.rank == 0 ? "finish() averages nothing" : "has left a guard of join()")) << why;
    unaveraged.reset();
  });
}

TEST(JoinStep, ThatThrowsEndsTheGuardWithItsError) {
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    Trained trained(ProcessGroup::make(worker, job.names()), smallBuckets());
    const auto train = [&] {
      auto join = trained.ddp.join([] { throw std::runtime_error("the optimizer fails"); });
      if (trained.rank == 1)
        for (int batch = 0; batch < 3; ++batch) trained.train(batch);
      join.finish();
    };
    if (trained.rank == 0) {
      EXPECT_THROW(train(), std::runtime_error);
    } else {
      EXPECT_TRUE(contains(messageOf<StateError>(train), "has left a guard of join()"));
    }
  });
}

TEST(JoinStep, ThatCallsFinishEndsOnce) {
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    Trained trained(ProcessGroup::make(worker, job.names()), smallBuckets());
    std::optional<ddp::Join> join;
    join.emplace(trained.ddp.join([&] {
      trained.step();
      join->finish();
    }));
    if (trained.rank == 1)
      for (int batch = 0; batch < 3; ++batch) trained.train(batch);
    join->finish();
    EXPECT_TRUE(join->isOver());
    EXPECT_EQ(trained.steps, 3);
    trained.ddp.verifyReplicas();
  });
}

TEST(JoinGuard, InAHookOfAPassIsAnError) {
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    Trained trained(ProcessGroup::make(worker, job.names()), smallBuckets());
    auto join = trained.join();
    std::string why;
    const auto handle = trained.net->bias.register_hook([&](const at::Tensor&) {
      if (why.empty()) why = messageOf<StateError>([&] { join.finish(); });
    });
    trained.train(0);
    trained.net->bias.remove_hook(handle);
    EXPECT_TRUE(contains(why, "finish() is called between passes")) << why;
    join.finish();
    EXPECT_EQ(trained.steps, 1);
    trained.ddp.verifyReplicas();
  });
}

// What hooks hold back would otherwise be lost, as for a rank without a batch.
TEST(JoinGuard, WhoseFinishHasFailedTakesNoBatch) {
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    Trained trained(ProcessGroup::make(worker, job.names()), smallBuckets());
    auto join = trained.join();
    if (trained.rank == 0) {
      EXPECT_THROW(join.finish(), CancelledError);
      EXPECT_TRUE(contains(messageOf<StateError>([&] { trained.backward(0); }), "finish() was called"));
    } else {
      const at::Tensor input = Broken::apply(inputOf(1, 0).requires_grad_());
      EXPECT_THROW(trained.ddp.forward(input, false).square().sum().backward(), std::exception);
      EXPECT_THROW(trained.train(0), CancelledError);
      trained.train(0);
    }
    join.finish();
    EXPECT_EQ(trained.steps, 1);
    trained.ddp.verifyReplicas();
  });
}

TEST(JoinGuard, MayBeMovedAndOutliveItsModule) {
  TensorJob job(ranks(2));
  Counter finished;
  job.onAll([&](Worker& worker) {
    const ProcessGroup group = ProcessGroup::make(worker, job.names());
    std::optional<Trained> trained(std::in_place, group, smallBuckets());
    ddp::Join first = trained->join();
    ddp::Join join = std::move(first);
    EXPECT_TRUE(first.isOver());  // NOLINT(bugprone-use-after-move): it says so
    first.finish();
    for (int batch = 0; batch <= trained->rank; ++batch) trained->train(batch);
    join.finish();
    EXPECT_EQ(trained->steps, 2);
    finished.add();
    finished.waitFor(2);  // a guard that is left fails the group
    {
      const ddp::Join last = trained->join();
      trained.reset();
      EXPECT_FALSE(last.isOver());
    }
    const std::string why = messageOf<StateError>([&] { barrier(group).wait(); });
    EXPECT_TRUE(contains(why, "has left a guard of join()")) << why;
  });
}

// The last batch of rank 1 is under noSync, and no rank has another one after it.
TEST(JoinGuard, NoticesAnUnevenEndUnderNoSync) {
  TensorJob job(ranks(2));
  for (const UnevenInputs atEnd : {UnevenInputs::kThrow, UnevenInputs::kStopAtFirst})
    job.onAll([&](Worker& worker) {
      Trained trained(ProcessGroup::make(worker, job.names()), smallBuckets());
      {
        auto join = trained.join(atEnd);
        trained.train(0);
        if (trained.rank == 1) {
          trained.optimizer.zero_grad();
          const auto unaveraged = trained.ddp.noSync();
          trained.backward(1);
        }
        if (atEnd == UnevenInputs::kThrow) {
          EXPECT_TRUE(contains(messageOf<StateError>([&] { join.finish(); }), "no batch is left on 'rank0' (rank 0)"));
        } else {
          join.finish();
        }
        EXPECT_TRUE(join.isOver());
      }  // without another finish()
      EXPECT_EQ(trained.steps, 1);
      trained.optimizer.zero_grad();
      trained.train(2);
      trained.ddp.verifyReplicas();
    });
}

}  // namespace
}  // namespace treadle::test::join_step_test

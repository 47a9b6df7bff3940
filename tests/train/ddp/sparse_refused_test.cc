// Sparse gradients that cannot be averaged fail the pass on all ranks with clear errors, and passes that fail leave
// replicas that go on.

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_sparse_coo_tensor_unsafe.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/optim/sgd.h>

#include <map>
#include <stdexcept>
#include <utility>

#include "tests/support/expect_error.h"
#include "tests/support/gate.h"
#include "tests/train/ddp/apart.h"
#include "tests/train/ddp/meeting.h"
#include "tests/train/ddp/tables.h"

namespace treadle::test::sparse_refused_test {
namespace {

using namespace sparse_test;

// Rank 1 has such a gradient, which nobody averages.
void expectRefused(Replica& own, const at::Tensor& gradient, const std::string& reason) {
  own.net->zero_grad();
  if (own.rank == 1) {
    own.net->weight.mutable_grad() = gradient;
    const std::string message = messageOf<ArgumentError>([&] { own.ddp.synchronize(); });
    EXPECT_TRUE(contains(message, "the gradient of parameter 'weight'"));
    EXPECT_TRUE(contains(message, reason));
  } else {
    EXPECT_EQ(statusOf<CancelledError>([&] { own.ddp.synchronize(); }).worker(), "rank1");
  }
}

// On rank 1: a row that is not there, or a gradient of another dtype.
TEST(RefusedGradients, FailThePassOnAllRanks) {
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    Replica own(worker, 2);
    const at::Tensor rows = at::ones({1, kWidth}, at::kDouble);
    const std::map<std::string, at::Tensor> refused = {
        {"size", at::_sparse_coo_tensor_unsafe(at::full({1, 1}, kRows, at::kLong), rows, {kRows, kWidth})},
        {"a tensor of Float",
         at::sparse_coo_tensor(at::zeros({1, 1}, at::kLong), rows.to(at::kFloat), {kRows, kWidth})}};
    for (const auto& [part, gradient] : refused) {
      expectRefused(own, gradient, part);
      own.net->zero_grad();
      own.backward("ss", 0);
      expectGradient(own.grad(), sumOfAll("ss", 0) / 2, /*isSparse=*/true);
    }
  });
}

// A parameter in no bucket, as its gradients were sparse. Rank 1's gradient is refused before the channel goes.
void expectRefused(const at::Tensor& gradient, const std::string& reason) {
  SCOPED_TRACE(reason);
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    Replica own(worker, 2);
    for (int step = 0; step < 4; ++step) {
      own.net->zero_grad();
      own.backward("ss", step);
      expectGradient(own.grad(), sumOfAll("ss", step) / 2, /*isSparse=*/true);
      if (step % 2 == 0) continue;  // in its bucket in the first pass
      expectRefused(own, gradient, reason);
      EXPECT_EQ(own.ddp.state().condition, DdpCondition::kUsable);
    }
  });
}

TEST(RefusedGradients, AreDenseOnesThatAreNotLikeTheirParameter) {
  const at::Tensor dense = at::ones({kRows, kWidth}, at::kDouble);
  expectRefused(at::ones({1, kWidth}, at::kDouble), "a tensor of Double [1, 5] with layout Strided");
  expectRefused(dense.to(at::kFloat), "a tensor of Float [12, 5]");
  expectRefused(dense.to_sparse_csr(), "with layout SparseCsr");
}

// On rank 0 it was made under noSync, and the averaged pass does not come to the parameter, which is in no bucket.
TEST(RefusedGradients, HaveAHistory) {
  TensorJob job(ranks(2));
  for (const bool isSparse : {true, false})
    job.onAll([&](Worker& worker) {
      Replica own(worker, 2);
      for (int step = 0; step < 2; ++step) {
        own.net->zero_grad();
        own.backward("ss", step);
      }
      own.net->zero_grad();
      {
        const auto unaveraged = own.ddp.noSync();
        const at::Tensor rows = at::embedding(own.net->weight, indexesOf(own.rank, 2, 1), -1, false, isSparse);
        rows.square().sum().backward({}, /*retain_graph=*/true, /*create_graph=*/own.rank == 0);
      }
      EXPECT_EQ(own.grad().is_sparse(), isSparse);
      EXPECT_EQ(own.grad().requires_grad(), own.rank == 0);
      if (own.rank == 0) {
        EXPECT_TRUE(contains(messageOf<ArgumentError>([&] { own.ddp.synchronize(); }), "'weight' has a history"));
      } else {
        EXPECT_EQ(statusOf<CancelledError>([&] { own.ddp.synchronize(); }).worker(), "rank0");
      }
      own.net->weight.mutable_grad() = at::Tensor();
      own.backward("ss", 3);
      expectGradient(own.grad(), sumOfAll("ss", 3) / 2, /*isSparse=*/true);
    });
}

// Tables that no rank uses in the first pass are not sent any more; a sparse gradient of one fails the pass on all.
TEST(SparseGradientsWith, StaticUseAreThoseOfTheFirstPass) {
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    const int rank = worker.self().rank;
    Tables net(/*isSparse=*/true), alone(/*isSparse=*/false);
    DdpOptions options = smallBuckets();
    options.unusedParameters = UnusedParameters::kStatic;
    DistributedDataParallel<Tables> ddp(net, ProcessGroup::make(worker, job.names()), options);
    for (const int step : {0, 4, 8}) {  // no rank uses `rare`
      net->zero_grad();
      net->loss(rank, step).backward();
      meanOfAll(*alone, 2, step);
      expectAverages(*net, *alone);
    }
    const at::Tensor used = net->never->forward(indexesOf(rank, 0, 1)).sum();
    const at::Tensor loss = rank == 1 ? net->loss(rank, 12) + used : net->loss(rank, 12);
    EXPECT_TRUE(contains(messageOf<StateError>([&] { loss.backward(); }), "parameter 'never.weight' has got a"));
  });
}

// Its backward pass may throw after its channel has gone.
struct LateFailure {
  explicit LateFailure(const Replica& own) {
    own.net->weight.register_hook([this](const at::Tensor&) {
      if (std::exchange(comes, false)) throwAfter(2);
    });
  }
  bool comes = false;
};

// Rank 1 begins its sums all the same.
TEST(FailureAfterTheChannel, LeavesTheOtherRankItsSparseAverages) {
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    Replica own(worker, 2);
    LateFailure failure(own);
    int step = 0;
    for (const std::string kinds : {"ss", "sd", "dd"}) {
      SCOPED_TRACE(kinds);
      for (const bool fails : {false, true}) {
        own.net->zero_grad();
        failure.comes = fails && own.rank == 1;
        if (failure.comes) {
          EXPECT_THROW(own.backward(kinds, step), std::runtime_error);
        } else {
          own.backward(kinds, step);
          expectGradient(own.grad(), sumOfAll(kinds, step) / 2, isSparseOnAll(kinds));
        }
        ++step;
      }
      expectApartAndRebind(own.ddp, worker, "rank1", [&] { own.backward(kinds, step); });
    }
  });
}

// None of them has had averages, and all have learnt the same plan from the channel.
TEST(FailureAfterTheChannel, OnAllRanksLeavesThemTogether) {
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    Replica own(worker, 2);
    LateFailure failure(own);
    for (int step = 0; const std::string kinds : {"ss", "sd", "dd", "ss", "ss"}) {
      own.net->zero_grad();
      failure.comes = true;
      EXPECT_THROW(own.backward(kinds, step++), std::runtime_error) << kinds;
    }
    own.net->zero_grad();
    own.backward("ss", 9);
    expectGradient(own.grad(), sumOfAll("ss", 9) / 2, /*isSparse=*/true);
    EXPECT_EQ(own.sent().size(), 1U);
    EXPECT_EQ(own.ddp.state().condition, DdpCondition::kUsable);
  });
}

// Rank 2 is lost when the others have its exact channel and have begun their sparse sums, and before its own, so these
// cannot end. The promises of DdpState hold:
// parameters are those before the pass, and gradients each rank's own.
TEST(LostRank, BeforeItsSparseGradientsGoIsLeftOut) {
  constexpr int kFault = 2, kSteps = 5;
  TensorJob job(ranks(3));
  Meeting faultBegins(3);
  Counter summing;
  std::vector<std::vector<at::Tensor>> ofRanks(2);
  job.onAll([&](Worker& worker) {
    const int rank = worker.self().rank;
    Tables net(/*isSparse=*/true), alone(/*isSparse=*/false);
    DistributedDataParallel<Tables> ddp(net, ProcessGroup::make(worker, job.names()), smallBuckets());
    torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1));
    const auto train = [&](int begin, int end) {
      for (int step = begin; step < end; ++step) {
        optimizer.zero_grad();
        net->loss(rank, step).backward();
        optimizer.step();
      }
    };
    train(0, kFault);
    faultBegins.come();
    optimizer.zero_grad();
    // Callbacks go in their order: this one after the step in which the pass sends its channel, and before the next
    // one, which begins the sums.
    net->words->weight.register_hook([&](const at::Tensor&) {
      auto& engine = torch::autograd::Engine::get_default_engine();
      engine.queue_callback([&] {
        if (rank != 2) return engine.queue_callback([&] { summing.add(); });
        summing.waitFor(2);
        job.kill(2);
      });
    });
    if (rank == 2) {
      EXPECT_ANY_THROW(net->loss(rank, kFault).backward());
      return;
    }
    const std::vector<at::Tensor> before = valuesOf(*net);
    const std::string message = messageOf<Error>([&] { net->loss(rank, kFault).backward(); });
    EXPECT_TRUE(contains(message, "rank2"));
    expectEqualBits(valuesOf(*net), before);
    {
      const at::NoGradGuard noGrad;
      for (size_t i = 0; i < before.size(); ++i) alone->parameters()[i].copy_(before[i]);
    }
    alone->loss(rank, kFault).backward();
    for (const auto& entry : alone->named_parameters()) {
      const at::Tensor own = net->named_parameters()[entry.key()].grad();
      EXPECT_EQ(own.defined(), entry.value().grad().defined()) << entry.key();
      if (own.defined()) {
        EXPECT_TRUE(close(denseOf(own), entry.value().grad())) << entry.key();
      }
    }
    EXPECT_TRUE(eventually([&] { return ddp.state().condition == DdpCondition::kGroupLost; }));
    EXPECT_TRUE(ddp.rebind(ProcessGroup::make(worker, ranks(2))));
    train(kFault, kSteps);
    ddp.verifyReplicas();
    ofRanks[static_cast<size_t>(rank)] = valuesOf(*net);
  });
  Tables alone(/*isSparse=*/false);
  torch::optim::SGD optimizer(alone->parameters(), torch::optim::SGDOptions(0.1));
  for (int step = 0; step < kSteps; ++step) {
    meanOfAll(*alone, step < kFault ? 3 : 2, step);
    optimizer.step();
  }
  expectTrainedAs(valuesOf(*alone), ofRanks);
}

}  // namespace
}  // namespace treadle::test::sparse_refused_test

// With a divisor that needs to know the passes of all gradients, a pass over gradients that no pending pass has made is
// refused: their sum would be divided by a wrong number.

#include "tests/support/expect_error.h"
#include "tests/train/ddp/net.h"

namespace treadle::test::uncounted_gradients_test {
namespace {

using namespace ddp_test;

// A replica with weights, or with a sum.
class Replica {
 public:
  Replica(Worker& worker, const TensorJob& job, Divisor divisor)
      : worker_(worker), rank_(worker.self().rank), divisor_(divisor), ddp_(net, groupOf(worker, job), with(divisor)) {}

  // A loss that counts with the weight `weight`.
  at::Tensor loss(int step, double weight = 1) {
    if (divisor_ == Divisor::kWeights) ddp_.setWeight(weight);
    return ddp_.forward(inputOf(rank_, step), false).square().sum();
  }
  void unaveraged(const at::Tensor& loss) {
    auto guard = ddp_.noSync();
    loss.backward();
  }
  void elsewhere(int step) { AutogradContext(worker_).backward({loss(step)}); }
  template <class F>
  void expectRefused(F pass) {
    EXPECT_TRUE(contains(messageOf<StateError>(pass), "gradients are there that no pass since the last average"));
  }
  // After the gradients were cleared, averages are right again.
  void expectThatTheNextIsRight() {
    net->zero_grad();
    loss(9, 2).backward();
    Net alone(0);
    const double divisor = divisor_ == Divisor::kWeights ? 4 : 1;
    for (int rank = 0; rank < 2; ++rank) alone->forward(inputOf(rank, 9), false).square().sum().div(divisor).backward();
    EXPECT_TRUE(close(net->first.grad(), alone->first.grad(), 1e-12));
  }
  size_t pendingPasses() { return ddp_.pendingPasses(); }

  Net net = Net(0);

 private:
  static ProcessGroup groupOf(Worker& worker, const TensorJob& job) { return ProcessGroup::make(worker, job.names()); }
  static DdpOptions with(Divisor divisor) {
    DdpOptions options = smallBuckets();
    options.divisor = divisor;
    return options;
  }

  Worker& worker_;
  const int rank_;
  const Divisor divisor_;
  DistributedDataParallel<Net> ddp_;
};

class UncountedGradients : public ::testing::TestWithParam<Divisor> {
 protected:
  // On both ranks of a job.
  void onReplicas(const std::function<void(Worker&, Replica&)>& action) {
    TensorJob job(ranks(2));
    job.onAll([&](Worker& worker) {
      Replica replica(worker, job, GetParam());
      action(worker, replica);
      replica.expectThatTheNextIsRight();
    });
  }
};

TEST_P(UncountedGradients, AreAveragesFromBeforeAPassInAContext) {
  onReplicas([](Worker&, Replica& replica) {
    replica.loss(0).backward();
    replica.elsewhere(1);
    replica.expectRefused([&] { replica.loss(2).backward(); });
  });
}

TEST_P(UncountedGradients, AreThoseOfNoSyncFromBeforeAPassInAContext) {
  onReplicas([](Worker&, Replica& replica) {
    replica.unaveraged(replica.loss(0, 50));
    replica.elsewhere(1);
    replica.expectRefused([&] { replica.loss(2, 3).backward(); });
  });
}

TEST_P(UncountedGradients, AreThoseOfAContextFromBeforeALocalPass) {
  onReplicas([](Worker& worker, Replica& replica) {
    AutogradContext context(worker);
    context.backward({replica.loss(0)});
    replica.loss(1).backward();
    replica.expectRefused([&] { context.backward({replica.loss(2)}); });
  });
}

TEST_P(UncountedGradients, AreThoseThatAProgramHasReplaced) {
  onReplicas([](Worker&, Replica& replica) {
    replica.unaveraged(replica.loss(0, 50));
    for (at::Tensor& parameter : replica.net->parameters()) parameter.mutable_grad() = parameter.grad() * 0.5;
    replica.expectRefused([&] { replica.loss(1, 3).backward(); });
  });
}

// The weight of the passes before holds for the gradients that are left, and not for the others.
TEST_P(UncountedGradients, AreLeftWhereOnlySomeWereCleared) {
  onReplicas([](Worker&, Replica& replica) {
    replica.unaveraged(replica.loss(0, 50));
    replica.net->last.mutable_grad() = at::Tensor();  // its gradient comes first
    replica.expectRefused([&] { replica.loss(1, 3).backward(); });
  });
}

// Changes in place keep the passes: a program that scales gradients knows what they mean.
TEST_P(UncountedGradients, AreNotThoseThatAreScaledInPlace) {
  onReplicas([](Worker&, Replica& replica) {
    replica.unaveraged(replica.loss(0, 3));
    for (const at::Tensor& parameter : replica.net->parameters()) parameter.grad().mul_(0.5);
    replica.loss(1, 3).backward();
    EXPECT_EQ(replica.pendingPasses(), 0U);
  });
}

INSTANTIATE_TEST_SUITE_P(Divisors, UncountedGradients, ::testing::Values(Divisor::kSum, Divisor::kWeights),
                         [](const auto& info) { return ddp::nameOf(info.param); });

// A pass without its weight leaves a gradient, which the next one would count with its own.
TEST(Weights, ThatAreMissingMustBeFollowedByClearedGradients) {
  TensorJob job(ranks(1));
  Net net(0);
  DdpOptions options = smallBuckets();
  options.divisor = Divisor::kWeights;
  DistributedDataParallel<Net> ddp(net, ProcessGroup::make(job[0], job.names()), options);
  auto pass = [&] { ddp.forward(inputOf(0, 0), false).square().sum().backward(); };
  EXPECT_THROW(pass(), StateError);
  ddp.setWeight(1);
  EXPECT_TRUE(contains(messageOf<StateError>(pass), "gradients are there that no pass"));
  net->zero_grad();
  ddp.setWeight(1);
  pass();
}

TEST(Weights, OfABatchThatIsSkippedAreNotThoseOfTheNext) {
  TensorJob job(ranks(1));
  Net net(0);
  DdpOptions options = smallBuckets();
  options.divisor = Divisor::kWeights;
  DistributedDataParallel<Net> ddp(net, ProcessGroup::make(job[0], job.names()), options);
  auto pass = [&] { ddp.forward(inputOf(0, 0), false).square().sum().backward(); };
  ddp.setWeight(5);
  ddp.skipPass();
  EXPECT_TRUE(contains(messageOf<StateError>(pass), "setWeight was not called for this pass"));
}

// The context cannot be used any more, so its gradients do not wait for an average.
TEST(PendingPasses, AreNoneAfterOneThatFailedInAContext) {
  TensorJob job(ranks(1));
  Net net(0);
  DistributedDataParallel<Net> ddp(net, ProcessGroup::make(job[0], job.names()), smallBuckets());
  AutogradContext context(job[0]);
  {
    auto unaveraged = ddp.noSync();
    context.backward({ddp.forward(inputOf(0, 0), false).square().mean()});
  }
  EXPECT_EQ(ddp.pendingPasses(), 1U);
  const at::Tensor broken = Broken::apply(inputOf(0, 1).requires_grad_());
  EXPECT_THROW(context.backward({ddp.forward(broken, false).square().mean()}), std::exception);
  EXPECT_EQ(ddp.pendingPasses(), 0U);
}

// Its buffer cannot be written, as its elements share their memory.
struct ExpandedImpl : torch::nn::Module {
  explicit ExpandedImpl(int rank) {
    weight = register_parameter("weight", at::ones({2}, at::kDouble));
    register_buffer("shared", at::full({1}, rank, at::kDouble).expand({3}));
  }
  at::Tensor weight;
};
TORCH_MODULE(Expanded);

// Rank 1 has averages when it fails to write a buffer.
TEST(PendingPasses, AreNoneWhereOnlyTheBuffersFail) {
  TensorJob job(ranks(2));
  const DdpOptions options{.start = StartCheck::kTrust, .buffers = Buffers::kFromRank0, .divisor = Divisor::kSum};
  job.onAll([&](Worker& worker) {
    const int rank = worker.self().rank;
    Expanded net(rank);
    DistributedDataParallel<Expanded> ddp(net, ProcessGroup::make(worker, job.names()), options);
    auto pass = [&] { net->weight.sum().backward(); };
    if (rank == 0) {
      pass();
    } else {
      EXPECT_THROW(pass(), std::exception);
    }
    EXPECT_TRUE(at::equal(net->weight.grad(), at::full({2}, 2, at::kDouble)));
    EXPECT_EQ(ddp.pendingPasses(), 0U);
    EXPECT_THROW(pass(), StateError);
  });
}

}  // namespace
}  // namespace treadle::test::uncounted_gradients_test

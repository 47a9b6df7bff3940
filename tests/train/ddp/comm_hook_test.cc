// Hooks of programs: whatever a hook begins and in however many rounds, all kinds of passes train as without it, and
// one that cannot go on ends in clear errors.

#include <algorithm>
#include <latch>
#include <optional>
#include <stdexcept>
#include <utility>

#include "tests/support/expect_error.h"
#include "tests/train/ddp/apart.h"
#include "tests/train/ddp/hooks.h"

namespace treadle::test::comm_hook_test {
namespace {

using namespace ddp_test;

// The average in two rounds: each rank averages a part, and gives it to all.
class TwoRounds : public CommHook {
 public:
  explicit TwoRounds(std::string kind = "TwoRounds") : kind_(std::move(kind)) {}

  std::string description() const override { return kind_; }
  Reduction reduce(Exchange& exchange, const ddp::Bucket& bucket) override {
    ++begun;
    const int64_t ranks = exchange.group().size(), elements = bucket.flat.numel();
    const int64_t part = (elements + ranks - 1) / ranks;
    at::Tensor padded = at::zeros({part * ranks}, bucket.flat.options()), own = at::zeros({part}, padded.options());
    padded.narrow(0, 0, elements).copy_(bucket.flat);
    co_await exchange.round(reduceScatter(exchange.group(), padded, own, ReduceOp::kAverage));
    if (fails) throw std::runtime_error("the hook fails");
    co_await exchange.round(allGather(exchange.group(), own, padded));
    if (failsAtTheEnd) throw std::runtime_error("the hook fails");
    bucket.flat.copy_(padded.narrow(0, 0, elements));
    ++ended;
  }
  void passAveraged(const std::vector<bool>& isUsed) override { usedInLastPass = isUsed; }

  int begun = 0, ended = 0;
  bool fails = false, failsAtTheEnd = false;
  std::vector<bool> usedInLastPass;

 private:
  const std::string kind_;
};

// One round, and something to do after it.
class AsFloat : public CommHook {
 public:
  std::string description() const override { return "AsFloat"; }
  Reduction reduce(Exchange& exchange, const ddp::Bucket& bucket) override {
    at::Tensor narrow = bucket.flat.to(at::kFloat);
    co_await exchange.round(allReduce(exchange.group(), narrow, ReduceOp::kAverage));
    bucket.flat.copy_(narrow);
  }
};

at::Tensor lossOf(Net& net, int rank, int step, bool skip = false) {
  return net->forward(inputOf(rank, step), skip).square().mean();
}

// What a pass of so many ranks adds to `.grad`, by one process.
void addAverages(Net& alone, int size, int step, bool skip = false) {
  for (int rank = 0; rank < size; ++rank) lossOf(alone, rank, step, skip).div(size).backward();
}

void expectGradients(const Net& actual, const Net& expected, double tolerance = 1e-12) {
  for (const auto& entry : expected->named_parameters()) {
    const at::Tensor gradient = actual->named_parameters()[entry.key()].grad();
    EXPECT_EQ(gradient.defined(), entry.value().grad().defined()) << entry.key();
    if (gradient.defined()) {
      EXPECT_TRUE(close(gradient, entry.value().grad(), tolerance)) << entry.key();
    }
  }
}

class PassesWithAHook : public ::testing::TestWithParam<int> {
 protected:
  const int size_ = GetParam();
  TensorJob job_{ranks(size_)};
};

// Buckets are planned anew after the first pass; in every other step no rank uses `skipped`; every third pass is not
// averaged by itself.
TEST_P(PassesWithAHook, OfTwoRoundsAreThoseOfOneProcess) {
  constexpr int kSteps = 9;
  job_.onAll([&](Worker& worker) {
    const int rank = worker.self().rank;
    Net net(0), alone(0);
    const auto hook = std::make_shared<TwoRounds>();
    DistributedDataParallel<Net> ddp(net, ProcessGroup::make(worker, job_.names()), smallBucketsWith(hook));
    for (int step = 0; step < kSteps; ++step) {
      const bool skips = step % 2 == 1;
      addAverages(alone, size_, step, skips);
      std::optional<ddp::NoSync> unaveraged;
      if (step % 3 == 1) unaveraged.emplace(ddp.noSync());
      lossOf(net, rank, step, skips).backward();
      if (unaveraged) continue;
      expectGradients(net, alone);
      net->zero_grad();
      alone->zero_grad();
    }
    EXPECT_EQ(hook->begun, hook->ended);
    EXPECT_EQ(hook->usedInLastPass, std::vector<bool>(4, true));
    ddp.verifyReplicas();
  });
}

TEST_P(PassesWithAHook, ThatAreDistributedAreAveragedInTwoRoundsToo) {
  job_.onAll([&](Worker& worker) {
    const int rank = worker.self().rank;
    Net net(0), alone(0);
    DistributedDataParallel<Net> ddp(net, ProcessGroup::make(worker, job_.names()),
                                     smallBucketsWith(std::make_shared<TwoRounds>()));
    for (int step = 0; step < 3; ++step) {
      AutogradContext context(worker);
      context.backward({lossOf(net, rank, step)});
      alone->zero_grad();
      addAverages(alone, size_, step);
      for (const auto& entry : alone->named_parameters()) {
        const at::Tensor parameter = net->named_parameters()[entry.key()];
        EXPECT_TRUE(close(context.gradient(parameter), entry.value().grad(), 1e-12)) << entry.key();
      }
    }
  });
}

// Rank 0 has no batch in one step, and another number of samples in each.
TEST_P(PassesWithAHook, WithWeightsAndWithoutABatchAreThoseOfOneProcess) {
  job_.onAll([&](Worker& worker) {
    const int rank = worker.self().rank;
    Net net(0), alone(0);
    DdpOptions options = smallBucketsWith(std::make_shared<TwoRounds>());
    options.divisor = Divisor::kWeights;
    DistributedDataParallel<Net> ddp(net, ProcessGroup::make(worker, job_.names()), options);
    const auto countOf = [](int each, int step) { return each == 0 && step == 1 ? 0 : 1 + (each + step) % kBatch; };
    const auto sumOf = [&](Net& model, int each, int step) {
      return model->forward(inputOf(each, step).slice(0, 0, countOf(each, step)), false).square().sum();
    };
    for (int step = 0; step < 3; ++step) {
      net->zero_grad();
      alone->zero_grad();
      int64_t all = 0;
      for (int each = 0; each < size_; ++each) all += countOf(each, step);
      if (all == 0) continue;
      for (int each = 0; each < size_; ++each) sumOf(alone, each, step).div(all).backward();
      if (const int64_t own = countOf(rank, step); own == 0) {
        ddp.skipPass();
      } else {
        ddp.setWeight(static_cast<double>(own));
        sumOf(net, rank, step).backward();
      }
      expectGradients(net, alone);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Sizes, PassesWithAHook, ::testing::Values(1, 2, 3));

// Its bucket has gone by then, so it goes again: one more round than the other buckets have left.
TEST(AgainInTwoRounds, ABucketWhoseGradientChangesIsAveragedAnew) {
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    Net net(0), alone(0);
    const auto hook = std::make_shared<TwoRounds>();
    DistributedDataParallel<Net> ddp(net, ProcessGroup::make(worker, job.names()), smallBucketsWith(hook));
    for (int step = 0; step < 3; ++step) {
      net->zero_grad();
      alone->zero_grad();
      for (int each = 0; each < 2; ++each) lossThatComesTwice(alone, each, step).div(2).backward();
      lossThatComesTwice(net, worker.self().rank, step).backward();
      expectGradients(net, alone);
    }
    EXPECT_GT(hook->begun, hook->ended);
  });
}

// Modules whose hooks have other numbers of rounds, whose first gradients come in another order on each rank.
TEST(HooksOfTwoModules, AreInOnePassInAnyOrder) {
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    const int rank = worker.self().rank;
    Net one(0), other(1), oneAlone(0), otherAlone(1);
    DistributedDataParallel<Net> first(one, ProcessGroup::make(worker, job.names()),
                                       smallBucketsWith(std::make_shared<TwoRounds>()));
    DistributedDataParallel<Net> second(other, ProcessGroup::make(worker, job.names()), smallBuckets());
    addAverages(oneAlone, 2, 0);
    addAverages(otherAlone, 2, 0);
    at::Tensor sum;
    if (rank == 0) {
      sum = lossOf(one, rank, 0);
      sum = sum + lossOf(other, rank, 0);
    } else {
      sum = lossOf(other, rank, 0);
      sum = sum + lossOf(one, rank, 0);
    }
    sum.backward();
    expectGradients(one, oneAlone);
    expectGradients(other, otherAlone);
  });
}

// Each pass has ended its operations before the next one begins: a group may be that of several modules.
TEST(HooksOfTwoModules, ShareAGroupInPassesOfTheirOwn) {
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    const int rank = worker.self().rank;
    const ProcessGroup group = ProcessGroup::make(worker, job.names());
    Net one(0), other(1), oneAlone(0), otherAlone(1);
    DistributedDataParallel<Net> first(one, group, smallBucketsWith(std::make_shared<TwoRounds>()));
    DistributedDataParallel<Net> second(other, group, smallBucketsWith(std::make_shared<AverageHook>()));
    for (int step = 0; step < 3; ++step) {
      for (Net* net : {&one, &other, &oneAlone, &otherAlone}) (*net)->zero_grad();
      addAverages(oneAlone, 2, step);
      addAverages(otherAlone, 2, step);
      lossOf(one, rank, step).backward();
      lossOf(other, rank, step).backward();
      expectGradients(one, oneAlone);
      expectGradients(other, otherAlone);
    }
  });
}

// By the hook of the first layer of the network, the pass has come to its last layers only.
TEST(CommHook, BeginsABucketWhileThePassStillRuns) {
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    Net net(0);
    const auto hook = std::make_shared<TwoRounds>();
    DistributedDataParallel<Net> ddp(net, ProcessGroup::make(worker, job.names()), smallBucketsWith(hook));
    int begunBefore = 0;
    net->bias.register_hook([&](const at::Tensor&) { begunBefore = hook->begun; });
    lossOf(net, worker.self().rank, 0).backward();
    EXPECT_GT(begunBefore, 0);
    EXPECT_GT(hook->begun, begunBefore);
  });
}

// Multiplies the gradient of one parameter.
class Scaling final : public CommHook {
 public:
  std::string description() const override { return "Scaling"; }
  Reduction reduce(Exchange& exchange, const ddp::Bucket& bucket) override {
    EXPECT_EQ(bucket.views.size(), bucket.parameters.size());
    for (size_t i = 0; i < bucket.views.size(); ++i)
      if (bucket.parameters[i] == 2) bucket.views[i].mul_(3);
    at::Tensor flat = bucket.flat;
    co_await exchange.round(allReduce(exchange.group(), flat, ReduceOp::kAverage));
  }
};

TEST(CommHook, GetsGradientsByParameter) {
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    Net net(0), alone(0);
    DistributedDataParallel<Net> ddp(net, ProcessGroup::make(worker, job.names()),
                                     smallBucketsWith(std::make_shared<Scaling>()));
    for (int step = 0; step < 3; ++step) {
      net->zero_grad();
      alone->zero_grad();
      addAverages(alone, 2, step);
      alone->skipped.mutable_grad().mul_(3);
      lossOf(net, worker.self().rank, step).backward();
      expectGradients(net, alone);
    }
  });
}

class Noting final : public CommHook {
 public:
  std::string description() const override { return "Noting"; }
  Reduction reduce(Exchange& exchange, const ddp::Bucket& bucket) override {
    at::Tensor flat = bucket.flat;
    exchange.add(allReduce(exchange.group(), flat, ReduceOp::kAverage));
    co_return;
  }
  void beginPass() override {
    if (failsToBegin) throw std::runtime_error("the hook fails");
    notes += "begins ";
  }
  void beginShadowPass() override { notes += "begins without a batch "; }
  void passAveraged(const std::vector<bool>& isUsed) override {
    if (failsToEnd) throw std::runtime_error("the hook fails");
    for (const bool one : isUsed) notes += one ? "1" : "0";
    notes += " ";
  }
  std::string notes;
  bool failsToBegin = false, failsToEnd = false;
};

TEST(CommHook, LearnsOfEachPassAndWhetherItWentWell) {
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    const int rank = worker.self().rank;
    Net net(0);
    const auto hook = std::make_shared<Noting>();
    DistributedDataParallel<Net> ddp(net, ProcessGroup::make(worker, job.names()), smallBucketsWith(hook));
    lossOf(net, rank, 0, /*skip=*/true).backward();
    net->zero_grad();
    lossOf(net, rank, 1, /*skip=*/rank == 0).backward();
    const at::Tensor input = inputOf(rank, 2).requires_grad_();
    EXPECT_THROW(net->forward(rank == 1 ? Broken::apply(input) : input, true).square().mean().backward(),
                 std::exception);
    {
      const auto unaveraged = ddp.noSync();
      lossOf(net, rank, 3).backward();
    }
    EXPECT_EQ(hook->notes, "begins 1101 begins 1111 begins ");
  });
}

// Rank 0 has one batch and a pass that is not averaged, which goes in the first pass after its batches; rank 1 has
// three batches. Both make one more pass, in which they see the end.
TEST(CommHook, LearnsOfPassesForWhichItsRankHasNoBatch) {
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    const int rank = worker.self().rank;
    Net net(0);
    const auto hook = std::make_shared<Noting>();
    DistributedDataParallel<Net> ddp(net, ProcessGroup::make(worker, job.names()), smallBucketsWith(hook));
    auto join = ddp.join([] {});
    for (int step = 0; step <= 2 * rank; ++step) {
      net->zero_grad();
      lossOf(net, rank, step).backward();
    }
    if (rank == 0) {
      net->zero_grad();
      const auto unaveraged = ddp.noSync();
      lossOf(net, rank, 1).backward();
    }
    join.finish();
    const std::string third = rank == 0 ? "begins without a batch " : "begins ";
    EXPECT_EQ(hook->notes, "begins 1111 begins 1111 " + third + "1111 begins without a batch 0000 ");
  });
}

// It has its averages by then, and nothing else is sent. But the other rank makes a step.
TEST(CommHook, ThatThrowsAfterTheAveragesFailsThePassOnItsRankAlone) {
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    const int rank = worker.self().rank;
    Net net(0), alone(0);
    const auto hook = std::make_shared<Noting>();
    DistributedDataParallel<Net> ddp(net, ProcessGroup::make(worker, job.names()), smallBucketsWith(hook));
    for (int step = 0; step < 2; ++step) {
      net->zero_grad();
      alone->zero_grad();
      addAverages(alone, 2, step);
      hook->failsToEnd = rank == 0 && step == 0;
      if (hook->failsToEnd) {
        EXPECT_THROW(lossOf(net, rank, step).backward(), std::runtime_error);
      } else {
        lossOf(net, rank, step).backward();
      }
      expectGradients(net, alone);
      EXPECT_EQ(ddp.pendingPasses(), 0U);
      if (step == 0) expectApartAndRebind(ddp, worker, "rank0", [&] { lossOf(net, rank, step).backward(); });
    }
    EXPECT_EQ(hook->notes, rank == 0 ? "begins begins begins 1111 " : "begins 1111 begins begins 1111 ");
  });
}

TEST(CommHook, OfAFewLinesRoundsToItsType) {
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    Net net(0), alone(0);
    DistributedDataParallel<Net> ddp(net, ProcessGroup::make(worker, job.names()),
                                     smallBucketsWith(std::make_shared<AsFloat>()));
    addAverages(alone, 2, 0);
    lossOf(net, worker.self().rank, 0).backward();
    expectGradients(net, alone, 1e-5);
    EXPECT_TRUE(at::equal(net->first.grad(), net->first.grad().to(at::kFloat).to(at::kDouble)));
  });
}

// A pass that fails on one rank before its exact channel ends on all, in the middle of the hook.
TEST(CommHook, IsLeftInTheMiddleWhereAPassFails) {
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    const int rank = worker.self().rank;
    Net net(0), alone(0);
    const auto hook = std::make_shared<TwoRounds>();
    DistributedDataParallel<Net> ddp(net, ProcessGroup::make(worker, job.names()), smallBucketsWith(hook));
    const at::Tensor input = inputOf(rank, 0).requires_grad_();
    const at::Tensor loss = net->forward(rank == 0 ? Broken::apply(input) : input, false).square().mean();
    if (rank == 0) {
      EXPECT_THROW(loss.backward(), std::runtime_error);
    } else {
      EXPECT_EQ(statusOf<CancelledError>([&] { loss.backward(); }).worker(), "rank0");
    }
    EXPECT_EQ(hook->ended, 0);
    net->zero_grad();
    addAverages(alone, 2, 1);
    lossOf(net, rank, 1).backward();
    expectGradients(net, alone);
  });
}

// Another callback of the pass throws on rank 1 between the steps of the end. It begins the second rounds all the same.
TEST(CommHook, GoesOnWhereAPassFailsAfterItsExactChannel) {
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    const int rank = worker.self().rank;
    Net net(0), alone(0);
    const auto hook = std::make_shared<TwoRounds>();
    DistributedDataParallel<Net> ddp(net, ProcessGroup::make(worker, job.names()), smallBucketsWith(hook));
    bool fails = rank == 1;
    net->bias.register_hook([&](const at::Tensor&) {
      if (std::exchange(fails, false)) throwAfter(1);
    });
    for (int step = 0; step < 3; ++step) {
      net->zero_grad();
      alone->zero_grad();
      addAverages(alone, 2, step);
      if (rank == 1 && step == 0) {
        EXPECT_THROW(lossOf(net, rank, step).backward(), std::runtime_error);
      } else {
        lossOf(net, rank, step).backward();
        expectGradients(net, alone);
      }
      if (step > 0) continue;
      EXPECT_EQ(hook->begun, hook->ended);
      expectApartAndRebind(ddp, worker, "rank1", [&] { lossOf(net, rank, step).backward(); });
    }
  });
}

// The group ends on both ranks, for all that use it, before its time limit and with the reason. Rank 0 cannot know
// which operations rank 1 begins next.
template <class Hook>
class BrokenHook {
 public:
  explicit BrokenHook(bool Hook::* fails, std::string reason = "the hook fails")
      : fails_(fails), reason_(std::move(reason)) {}

  // Averages come on no rank; or they may on rank 1, where they do not need rank 0 any more.
  void expectEnd(const ddp::BucketLimits& buckets = smallBuckets().buckets, bool mayAverage = false) {
    TensorJob job(ranks(2));
    Net alone(0);
    addAverages(alone, 2, 0);
    std::latch isConstructed(2);
    job.onAll([&](Worker& worker) {
      const int rank = worker.self().rank;
      const auto hook = std::make_shared<Hook>();
      DdpOptions options = smallBucketsWith(hook);
      options.buckets = buckets;
      loseGroup(ProcessGroup::make(worker, job.names()), options, mayAverage, isConstructed);
      Net net(0);
      DistributedDataParallel<Net> ddp(net, ProcessGroup::make(worker, job.names()), options);
      lossOf(net, rank, 0).backward();
      expectGradients(net, alone);
    });
  }

 private:
  void loseGroup(const ProcessGroup& group, const DdpOptions& options, bool mayAverage, std::latch& isConstructed) {
    const int rank = group.rank();
    Hook& hook = dynamic_cast<Hook&>(*options.hook);
    Net net(0);
    DistributedDataParallel<Net> ddp(net, group, options);
    isConstructed.arrive_and_wait();
    const auto pass = [&] { lossOf(net, rank, 0).backward(); };
    if (rank == 0) {
      hook.*fails_ = true;
      EXPECT_TRUE(contains(messageOf<Error>(pass), reason_));
      hook.*fails_ = false;
    } else {
      try {
        pass();
        EXPECT_TRUE(mayAverage);
      } catch (const StateError&) {}
    }
    const std::string why = messageOf<StateError>([&] { barrier(group).wait(std::chrono::seconds(60)); });
    EXPECT_TRUE(contains(why, "'rank0' (rank 0) could not end an averaged backward pass (")) << why;
    EXPECT_TRUE(contains(why, reason_)) << why;
    EXPECT_TRUE(contains(messageOf<StateError>(pass), "make a new group"));
    EXPECT_THROW(ddp.agreeToSkip(false), StateError);
  }

  bool Hook::* const fails_;
  const std::string reason_;
};

TEST(BrokenHook, ThatThrowsBetweenItsRoundsEndsItsGroup) {
  BrokenHook(&TwoRounds::fails).expectEnd();
  BrokenHook(&TwoRounds::fails).expectEnd(ddp::BucketLimits{});  // no other bucket has rounds left
}

TEST(BrokenHook, ThatThrowsAfterItsLastRoundEndsItsGroup) {
  BrokenHook(&TwoRounds::failsAtTheEnd).expectEnd(ddp::BucketLimits{}, /*mayAverage=*/true);
}

TEST(BrokenHook, ThatThrowsAsAPassBeginsEndsItsGroup) { BrokenHook(&Noting::failsToBegin).expectEnd(); }

// An operation ends badly on this rank alone, or is none.
class OneFails final : public CommHook {
 public:
  std::string description() const override { return "OneFails"; }
  Reduction reduce(Exchange& exchange, const ddp::Bucket& bucket) override {
    if (fails) {
      Promise<void> broken;
      broken.fail(internalError("an operation fails here"));
      exchange.add(broken.future());
    }
    if (addsNone) exchange.add(Future<void>());
    at::Tensor flat = bucket.flat;
    co_await exchange.round(allReduce(exchange.group(), flat, ReduceOp::kSum));
    at::Tensor size = at::ones({1});
    co_await exchange.round(allReduce(exchange.group(), size, ReduceOp::kSum));
    bucket.flat.div_(size.item<double>());
  }
  bool fails = false, addsNone = false;
};

TEST(BrokenHook, WhoseOperationFailsOnOneRankEndsItsGroup) {
  BrokenHook(&OneFails::fails, "an operation fails here").expectEnd();
}

TEST(BrokenHook, ThatAddsAFutureOfNothingEndsItsGroup) {
  BrokenHook(&OneFails::addsNone, "a Future that holds nothing").expectEnd();
}

// No coroutine: it throws when it is called.
class ThrowsAtOnce final : public CommHook {
 public:
  std::string description() const override { return "ThrowsAtOnce"; }
  Reduction reduce(Exchange& exchange, const ddp::Bucket& bucket) override {
    if (fails) throw std::runtime_error("the hook fails");
    return average_.reduce(exchange, bucket);
  }
  bool fails = false;

 private:
  AverageHook average_;
};

TEST(BrokenHook, ThatThrowsAtOnceEndsItsGroup) { BrokenHook(&ThrowsAtOnce::fails).expectEnd(); }

TEST(CommHooks, ThatDifferAreNamedWithTheirRanks) {
  TensorJob job(ranks(3));
  job.onAll([&](Worker& worker) {
    const int rank = worker.self().rank;
    Net net(0);
    const auto hook = std::make_shared<TwoRounds>(rank == 1 ? "one kind" : "another kind");
    const auto construct = [&] {
      DistributedDataParallel<Net> ddp(net, ProcessGroup::make(worker, job.names()), smallBucketsWith(hook));
    };
    EXPECT_TRUE(contains(messageOf<ArgumentError>(construct),
                         "ranks 0, 2 have DdpOptions::hook another kind; rank 1 has DdpOptions::hook one kind"));
  });
}

class Refusing final : public CommHook {
 public:
  Refusing(bool refuses, bool hasNoWords) : refuses_(refuses), hasNoWords_(hasNoWords) {}
  std::string description() const override {
    if (hasNoWords_) throw std::runtime_error("it does not like 'last', and says so late");
    return "Refusing";
  }
  Reduction reduce(Exchange&, const ddp::Bucket&) override { co_return; }
  void bind(const ProcessGroup& group, const std::vector<HookParameter>& parameters) override {
    EXPECT_EQ(group.size(), 2);
    EXPECT_EQ(parameters.front().name, "first");
    if (refuses_) raise(invalidArgument("it does not like '" + parameters.back().name + "'"));
  }

 private:
  const bool refuses_, hasNoWords_;
};

TEST(CommHooks, ThatRefuseAReplicaOnOneRankFailOnAll) {
  TensorJob job(ranks(2));
  const auto messageWith = [&](Worker& worker, bool refuses, bool hasNoWords) {
    Net net(0);
    const auto hook = std::make_shared<Refusing>(refuses, hasNoWords);
    return messageOf<ArgumentError>([&] {
      DistributedDataParallel<Net> ddp(net, ProcessGroup::make(worker, job.names()), smallBucketsWith(hook));
    });
  };
  job.onAll([&](Worker& worker) {
    const bool isSecond = worker.self().rank == 1;
    EXPECT_TRUE(contains(messageWith(worker, true, false), "it does not like 'last'"));
    for (const bool isLate : {false, true}) {
      const std::string message = messageWith(worker, isSecond && !isLate, isSecond && isLate);
      EXPECT_TRUE(contains(message, "rank 1 has DdpOptions::hook that cannot be used: it does not like 'last'"))
          << message;
    }
  });
}

// A parameter without elements, in a bucket with others and alone.
TEST(CommHooks, TakeEmptyBuckets) {
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    const std::vector<std::shared_ptr<CommHook>> hooks = {
        std::make_shared<TwoRounds>(), std::make_shared<CastHook>(at::kHalf),
        std::make_shared<PowerSgdHook>(PowerSgdOptions{.startAfter = 0}), std::make_shared<TopKHook>()};
    for (const Shapes& shapes : {Shapes{{0, 5}, {0}}, Shapes{{0, 5}, {2, 1}}})
      for (const auto& hook : hooks) {
        Weights weights(shapes);
        DistributedDataParallel<Weights> ddp(weights, ProcessGroup::make(worker, job.names()), smallBucketsWith(hook));
        const std::vector<at::Tensor> averages = averageOf(*weights, {at::ones(shapes[0]), at::ones(shapes[1])});
        EXPECT_TRUE(at::equal(averages[0], at::ones({0, 5}))) << hook->description();
        EXPECT_TRUE(at::equal(averages[1], at::ones(shapes[1]))) << hook->description();
      }
  });
}

TEST(CommHooks, ServeOneReplicaAtATime) {
  TensorJob job(ranks(1));
  const ProcessGroup group = ProcessGroup::make(job[0], job.names());
  const auto hook = std::make_shared<TwoRounds>();
  Net net(0), other(0);
  {
    DistributedDataParallel<Net> ddp(net, group, smallBucketsWith(hook));
    EXPECT_THROW(DistributedDataParallel<Net>(other, group, smallBucketsWith(hook)), StateError);
  }
  DistributedDataParallel<Net> ddp(other, group, smallBucketsWith(hook));
  lossOf(other, 0, 0).backward();
  EXPECT_GT(hook->ended, 0);
}

}  // namespace
}  // namespace treadle::test::comm_hook_test

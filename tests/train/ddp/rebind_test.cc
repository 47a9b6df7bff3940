// A worker is lost, stops or throws at different moments. What the state promises holds then, and rebind() goes on with
// the ranks that are left, as one process does on their batches.

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/engine.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <memory>
#include <stdexcept>

#include "tests/support/expect_error.h"
#include "tests/support/gate.h"
#include "tests/train/ddp/hooks.h"
#include "tests/train/ddp/meeting.h"
#include "tests/train/ddp/uneven.h"
#include "treadle/train/ddp/of_all_ranks.h"
#include "treadle/train/ddp/rebind.h"

namespace treadle::test::rebind_test {
namespace {

using namespace ddp_test;

constexpr int kFault = 2, kSteps = 6;  // the step in which something happens, and how many there are

// A rank that trains.
struct Replica {
  Replica(Worker& worker, const std::vector<std::string>& members, const DdpOptions& options = smallBuckets(),
          const GroupOptions& groupOptions = {})
      : rank(worker.self().rank), ddp(net, ProcessGroup::make(worker, members, groupOptions), options) {
    renewOptimizer();
  }

  // Momentum: a rank that makes a step alone differs from then on.
  void renewOptimizer() {
    optimizer = std::make_unique<torch::optim::SGD>(net->parameters(),
                                                    torch::optim::SGDOptions(0.05).momentum(0.9).weight_decay(0.1));
  }
  void backward(int step) { ddp.forward(inputOf(rank, step), false).square().mean().backward(); }
  void train(int begin, int end) {
    for (int step = begin; step < end; ++step) {
      optimizer->zero_grad();
      backward(step);
      optimizer->step();
    }
  }
  std::vector<at::Tensor> state() const { return stateAfter(*net, *optimizer); }

  // The gradients of one process that has these parameters and this rank's batch, as far as the pass came.
  void expectOwnGradients(int step, bool isWhole = true) {
    Net alone(0);
    {
      const at::NoGradGuard noGrad;
      for (const auto& entry : net->named_parameters()) alone->named_parameters()[entry.key()].copy_(entry.value());
    }
    alone->forward(inputOf(rank, step), false).square().mean().backward();
    for (const auto& entry : alone->named_parameters()) {
      const at::Tensor parameter = net->named_parameters()[entry.key()];
      if (isWhole || parameter.grad().defined()) {
        EXPECT_TRUE(close(parameter.grad(), entry.value().grad())) << entry.key();
      }
    }
  }

  // Makes the step in which something happens. Returns whether this rank has got averages.
  bool trainInFault(const std::string& cause, bool isWhole = true) {
    const std::vector<at::Tensor> before = copiesOf(net->parameters());
    optimizer->zero_grad();
    try {
      backward(kFault);
    } catch (const std::exception& error) {
      EXPECT_TRUE(contains(error.what(), cause));
      expectEqualBits(copiesOf(net->parameters()), before);
      expectOwnGradients(kFault, isWhole);
      return false;
    }
    optimizer->step();
    return true;
  }

  void expectGroupIsLost(const std::string& lostWorker, const std::string& cause) {
    EXPECT_TRUE(eventually([&] { return ddp.state().condition == DdpCondition::kGroupLost; }));
    EXPECT_EQ(ddp.state().lostWorker, lostWorker);
    EXPECT_TRUE(contains(ddp.state().reason, cause));
    EXPECT_THROW(backward(kFault), Error);
    {
      const auto unaveraged = ddp.noSync();
      optimizer->zero_grad();
      backward(kFault);
    }
    expectOwnGradients(kFault);
  }

  // The steps after the fault, with other members. Returns whether the ranks were equal.
  bool goOnWith(const ProcessGroup& group) {
    const bool areEqual = ddp.rebind(group);
    EXPECT_EQ(ddp.state().condition, DdpCondition::kUsable);
    EXPECT_EQ(ddp.state().reason, "");
    EXPECT_EQ(ddp.group().size(), group.size());
    if (!areEqual) renewOptimizer();
    train(kFault + 1, kSteps);
    EXPECT_EQ(ddp.stats().averagedPasses, static_cast<uint64_t>(kSteps - kFault - 1));
    ddp.verifyReplicas();
    return areEqual;
  }

  static Net netWithBuffer() {
    Net net(0);
    net->register_buffer("seen", at::zeros({2}, at::kDouble));
    return net;
  }

  const int rank;
  Net net = netWithBuffer();
  DistributedDataParallel<Net> ddp;
  std::unique_ptr<torch::optim::SGD> optimizer;
};

// Steps of one process on the batches of some ranks.
struct Part {
  std::vector<int> ranks;
  int begin, end;
  bool renewsOptimizer = false;
};

std::vector<at::Tensor> trainedInParts(const std::vector<Part>& parts) {
  Net net(0);
  const auto options = torch::optim::SGDOptions(0.05).momentum(0.9).weight_decay(0.1);
  auto optimizer = std::make_unique<torch::optim::SGD>(net->parameters(), options);
  for (const Part& part : parts) {
    if (part.renewsOptimizer) optimizer = std::make_unique<torch::optim::SGD>(net->parameters(), options);
    for (int step = part.begin; step < part.end; ++step) {
      std::vector<at::Tensor> inputs;
      for (const int rank : part.ranks) inputs.push_back(inputOf(rank, step));
      optimizer->zero_grad();
      net->forward(at::cat(inputs), false).square().mean().backward();
      optimizer->step();
    }
  }
  return stateAfter(*net, *optimizer);
}

// What became of a rank.
struct End {
  bool isAveraged = false, areEqual = false;
  std::vector<at::Tensor> state;
};

// The replica of the lowest rank that is left counts, with the step that it may have made.
void expectAsOneProcess(const std::vector<int>& before, const std::vector<int>& after, const std::vector<End>& ends) {
  std::vector<std::vector<at::Tensor>> states;
  const bool areEqual = std::all_of(after.begin(), after.end(), [&](int rank) {
    return ends[static_cast<size_t>(rank)].isAveraged == ends[static_cast<size_t>(after.front())].isAveraged;
  });
  for (const int rank : after) {
    EXPECT_EQ(ends[static_cast<size_t>(rank)].areEqual, areEqual);
    states.push_back(ends[static_cast<size_t>(rank)].state);
  }
  const int made = kFault + (ends[static_cast<size_t>(after.front())].isAveraged ? 1 : 0);
  expectTrainedAs(trainedInParts({{before, 0, made}, {after, kFault + 1, kSteps, !areEqual}}), states);
}

void atTheEndOfThePass(std::function<void()> f) {
  torch::autograd::Engine::get_default_engine().queue_callback(std::move(f));
}

enum class Moment {
  kBeforeItsPass,
  kBetweenBuckets,   // the first one has gone
  kAfterTheChannel,  // all has gone that the first step of the end sends; others may have their averages
};

const char* nameOf(Moment moment) {
  switch (moment) {
    case Moment::kBeforeItsPass: return "beforeItsPass";
    case Moment::kBetweenBuckets: return "betweenBuckets";
    case Moment::kAfterTheChannel: break;
  }
  return "afterTheChannel";
}

class LostRank : public ::testing::TestWithParam<Moment> {
 protected:
  static constexpr int kLost = 2;

  // Its worker ends in its pass.
  void trainUntilTheEnd(Replica& own) {
    const auto end = [this] { job_.kill(kLost); };
    if (GetParam() == Moment::kBeforeItsPass) return end();
    own.net->bias.register_hook(
        [&](const at::Tensor&) { GetParam() == Moment::kBetweenBuckets ? end() : atTheEndOfThePass(end); });
    own.optimizer->zero_grad();
    try {
      own.backward(kFault);
    } catch (const std::exception&) {}  // as its worker has ended, unless it has its averages
  }

  TensorJob job_{ranks(3)};
  Meeting faultBegins_{3};
};

TEST_P(LostRank, IsLeftOutByTheOthers) {
  std::vector<End> ends(3);
  job_.onAll([&](Worker& worker) {
    Replica own(worker, ranks(3));
    own.train(0, kFault);
    faultBegins_.come();
    if (own.rank == kLost) return trainUntilTheEnd(own);
    End& end = ends[static_cast<size_t>(own.rank)];
    end.isAveraged = own.trainInFault("rank2");
    if (GetParam() != Moment::kAfterTheChannel) {
      EXPECT_FALSE(end.isAveraged);
    }
    own.expectGroupIsLost("rank2", "rank2");
    end.areEqual = own.goOnWith(ProcessGroup::make(worker, ranks(2)));
    end.state = own.state();
  });
  expectAsOneProcess({0, 1, 2}, {0, 1}, ends);
}

INSTANTIATE_TEST_SUITE_P(Moments, LostRank,
                         ::testing::Values(Moment::kBeforeItsPass, Moment::kBetweenBuckets, Moment::kAfterTheChannel),
                         [](const auto& info) { return nameOf(info.param); });

void expectEqualStates(const OptimizerState& actual, const OptimizerState& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  EXPECT_FALSE(expected.empty());
  for (const auto& [name, tensor] : expected) EXPECT_TRUE(haveEqualBits(actual.at(name), tensor)) << name;
}

// Two are lost, and one goes on alone.
TEST(Rebind, GoesOnAloneAfterLossesOneAfterTheOther) {
  TensorJob job(ranks(3));
  Meeting faultBegins(3), isTwoLost(3);
  std::vector<End> ends(1);
  job.onAll([&](Worker& worker) {
    Replica own(worker, ranks(3));
    own.train(0, kFault);
    faultBegins.come();
    if (own.rank == 2) {
      job.kill(2);
      return isTwoLost.come();
    }
    EXPECT_FALSE(own.trainInFault("rank2"));
    own.expectGroupIsLost("rank2", "rank2");
    const ProcessGroup both = ProcessGroup::make(worker, ranks(2));
    isTwoLost.come();
    if (own.rank == 1) return job.kill(1);
    EXPECT_THROW(static_cast<void>(own.ddp.rebind(both)), PeerLostError);
    EXPECT_EQ(own.ddp.group().size(), 3);
    EXPECT_EQ(own.ddp.state().lostWorker, "rank2");
    ends[0].areEqual = own.goOnWith(ProcessGroup::make(worker, ranks(1)));
    ends[0].state = own.state();
  });
  expectAsOneProcess({0, 1, 2}, {0}, ends);
}

// It is silent for longer than the group's time limit. No worker is lost then.
TEST(StoppedRank, IsLeftOutByTheOthers) {
  constexpr int kStopped = 2;
  TensorJob job(ranks(3));
  Counter gaveUp;
  std::vector<End> ends(3);
  job.onAll([&](Worker& worker) {
    Replica own(worker, ranks(3));
    own.train(0, kFault);
    EXPECT_TRUE(own.ddp.rebind(ProcessGroup::make(worker, ranks(3), {.timeout = std::chrono::seconds(3)})));
    if (own.rank == kStopped) {
      gaveUp.waitFor(2);
      EXPECT_TRUE(eventually([&] { return own.ddp.state().condition == DdpCondition::kGroupLost; }));
      EXPECT_FALSE(own.trainInFault("could not end an averaged backward pass"));
      return own.expectGroupIsLost("", "could not end an averaged backward pass");
    }
    End& end = ends[static_cast<size_t>(own.rank)];
    end.isAveraged = own.trainInFault("");
    EXPECT_FALSE(end.isAveraged);
    own.expectGroupIsLost("", "could not end an averaged backward pass");
    gaveUp.add();
    end.areEqual = own.goOnWith(ProcessGroup::make(worker, ranks(2)));
    end.state = own.state();
  });
  expectAsOneProcess({0, 1, 2}, {0, 1}, ends);
}

// Throws where `where` says: in the first round of a pass, between its rounds, or when the averages are there.
class ThrowingHook final : public CommHook {
 public:
  enum class Where { kNowhere, kFirstRound, kBetweenRounds, kAtTheEnd, kAgree, kLoss };

  std::string description() const override { return "ThrowingHook"; }
  Reduction reduce(Exchange& exchange, const ddp::Bucket& bucket) override {
    throwIn(Where::kFirstRound);
    if (where == Where::kLoss) exchange.add(noticesLoss());
    at::Tensor flat = bucket.flat, count = at::ones({1}, at::kDouble);
    co_await exchange.round(allReduce(exchange.group(), flat, ReduceOp::kSum));
    throwIn(Where::kBetweenRounds);
    co_await exchange.round(allReduce(exchange.group(), count, ReduceOp::kSum));
    bucket.flat.div_(count.item<double>());
  }
  void passAveraged(const std::vector<bool>&) override { throwIn(Where::kAtTheEnd); }
  // Ranks are equal then, so it may use the group.
  void agree(const ProcessGroup& group) override {
    throwIn(Where::kAgree);
    EXPECT_EQ(ddp::ofAllRanks(group, 7 + group.rank()).back(), 6 + group.size());
    ++agreements;
  }

  int agreements = 0;
  Where where = Where::kNowhere;
  std::function<void()> fails = [] { throw std::runtime_error("the hook fails"); };

 private:
  static Future<void> noticesLoss() {
    Promise<void> operation;
    operation.fail(peerLost("rank2", "rank2 is lost"));
    return operation.future();
  }
  void throwIn(Where here) const {
    if (where == here) fails();
  }
};

const char* nameOf(ThrowingHook::Where where) {
  switch (where) {
    case ThrowingHook::Where::kNowhere: return "nowhere";
    case ThrowingHook::Where::kFirstRound: return "firstRound";
    case ThrowingHook::Where::kBetweenRounds: return "betweenRounds";
    case ThrowingHook::Where::kAtTheEnd: return "atTheEnd";
    case ThrowingHook::Where::kAgree: return "agree";
    case ThrowingHook::Where::kLoss: break;
  }
  return "loss";
}

class ThrowingRank : public ::testing::TestWithParam<ThrowingHook::Where> {};

// All workers live, so all go on, with a new group.
TEST_P(ThrowingRank, EndsTheGroupOrThePass) {
  constexpr int kThrows = 1;
  const bool endsGroup = GetParam() != ThrowingHook::Where::kAtTheEnd;
  TensorJob job(ranks(3));
  Meeting faultBegins(3);
  std::vector<End> ends(3);
  job.onAll([&](Worker& worker) {
    const auto hook = std::make_shared<ThrowingHook>();
    const DdpOptions options = smallBucketsWith(hook);
    Replica own(worker, ranks(3), options);
    End& end = ends[static_cast<size_t>(own.rank)];
    own.train(0, kFault);
    faultBegins.come();
    if (endsGroup) {
      if (own.rank == kThrows) hook->where = GetParam();
      const bool isCut = own.rank == kThrows && GetParam() == ThrowingHook::Where::kFirstRound;
      end.isAveraged = own.trainInFault("the hook fails", !isCut);
      hook->where = ThrowingHook::Where::kNowhere;
      own.expectGroupIsLost("", "the hook fails");
    } else {
      if (own.rank == kThrows) hook->where = GetParam();
      own.optimizer->zero_grad();
      if (own.rank == kThrows) {
        EXPECT_THROW(own.backward(kFault), std::runtime_error);
      } else {
        own.train(kFault, kFault + 1);
        end.isAveraged = true;
      }
      hook->where = ThrowingHook::Where::kNowhere;
      EXPECT_EQ(own.ddp.state().condition, DdpCondition::kUsable);
    }
    EXPECT_EQ(hook->agreements, 0);
    end.areEqual = own.goOnWith(ProcessGroup::make(worker, ranks(3)));
    EXPECT_EQ(hook->agreements, 1) << "agree() is called once";
    end.state = own.state();
  });
  expectAsOneProcess({0, 1, 2}, {0, 1, 2}, ends);
}

INSTANTIATE_TEST_SUITE_P(Places, ThrowingRank,
                         ::testing::Values(ThrowingHook::Where::kFirstRound, ThrowingHook::Where::kBetweenRounds,
                                           ThrowingHook::Where::kAtTheEnd),
                         [](const auto& info) { return nameOf(info.param); });

// The group is as good as before.
TEST(DdpState, IsUsableAfterAPassThatFailsBeforeItsChannel) {
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    Replica own(worker, ranks(2));
    EXPECT_EQ(own.ddp.state().condition, DdpCondition::kUsable);
    const std::vector<at::Tensor> before = copiesOf(own.net->parameters());
    const at::Tensor input = inputOf(own.rank, 0).requires_grad_();
    EXPECT_THROW(own.net->forward(own.rank == 1 ? Broken::apply(input) : input, false).square().mean().backward(),
                 std::exception);
    expectEqualBits(copiesOf(own.net->parameters()), before);
    EXPECT_EQ(own.ddp.state().condition, DdpCondition::kUsable);
    EXPECT_EQ(own.ddp.state().reason, "");
    own.train(0, 2);
    own.ddp.verifyReplicas();
  });
}

// The averages of the others wait for its next round, and their buffers for its own.
TEST(LostWorker, BetweenTheRoundsOfAHookIsLeftOutByTheOthers) {
  constexpr int kLost = 2;
  TensorJob job(ranks(3));
  Meeting faultBegins(3);
  std::vector<End> ends(3);
  job.onAll([&](Worker& worker) {
    const auto hook = std::make_shared<ThrowingHook>();
    DdpOptions options = smallBucketsWith(hook);
    options.buffers = Buffers::kAverage;
    Replica own(worker, ranks(3), options);
    own.train(0, kFault);
    at::Tensor seen = own.net->named_buffers()["seen"];
    seen.fill_(own.rank);
    faultBegins.come();
    if (own.rank == kLost) {
      hook->where = ThrowingHook::Where::kBetweenRounds;
      hook->fails = [&] { job.kill(kLost); };
      EXPECT_THROW(own.backward(kFault), std::exception);
      return;
    }
    End& end = ends[static_cast<size_t>(own.rank)];
    end.isAveraged = own.trainInFault("rank2");
    EXPECT_FALSE(end.isAveraged);
    EXPECT_TRUE(at::equal(seen, at::full({2}, own.rank, at::kDouble)));
    own.expectGroupIsLost("rank2", "rank2");
    end.areEqual = own.goOnWith(ProcessGroup::make(worker, ranks(2)));
    end.state = own.state();
  });
  expectAsOneProcess({0, 1, 2}, {0, 1}, ends);
}

// What rank 0 holds back stays what it was, when its pass fails and when it goes on alone.
TEST(LostWorker, LeavesErrorMemoriesAsTheyAre) {
  TensorJob job(ranks(2));
  Meeting faultBegins(2);
  job.onAll([&](Worker& worker) {
    const auto hook = std::make_shared<TopKHook>(TopKOptions{.ratio = 0.1});
    const DdpOptions options = smallBucketsWith(hook);
    Replica own(worker, ranks(2), options);
    own.train(0, kFault);
    faultBegins.come();
    if (own.rank == 1) return job.kill(1);
    const OptimizerState before = hook->state();
    EXPECT_FALSE(own.trainInFault("rank1"));
    expectEqualStates(hook->state(), before);
    EXPECT_TRUE(own.ddp.rebind(ProcessGroup::make(worker, ranks(1))));
    expectEqualStates(hook->state(), before);
    own.train(kFault, kSteps);
  });
}

// Rank 1 does not begin the pass in which rank 2 is lost, so it has counted one pass less than rank 0.
TEST(LostWorker, LeavesRanksThatAgreeOnPassesAndQOfPowerSgd) {
  TensorJob job(ranks(3));
  Meeting faultBegins(3);
  std::vector<std::string> descriptions(2);
  std::vector<std::vector<at::Tensor>> states(2);
  job.onAll([&](Worker& worker) {
    const auto hook =
        std::make_shared<PowerSgdHook>(PowerSgdOptions{.rank = 1, .startAfter = 1, .minCompressionRate = 1});
    const DdpOptions options = smallBucketsWith(hook);
    Replica own(worker, ranks(3), options);
    own.train(0, kFault);
    faultBegins.come();
    if (own.rank == 2) return job.kill(2);
    if (own.rank == 0) {
      EXPECT_FALSE(own.trainInFault("rank2"));
    }
    EXPECT_TRUE(own.ddp.rebind(ProcessGroup::make(worker, ranks(2))));
    const auto rank = static_cast<size_t>(own.rank);
    descriptions[rank] = hook->description();
    own.train(kFault, kSteps);
    own.ddp.verifyReplicas();
    states[rank] = own.state();
  });
  EXPECT_TRUE(contains(descriptions[0], "in pass " + std::to_string(kFault + 1)));
  EXPECT_EQ(descriptions[1], descriptions[0]);
  expectEqualBits(states[1], states[0]);
}

// Each has trained alone before, so Q differs.
TEST(PowerSgdHook, TakesQAndPassesFromTheLowestRankWhenRanksAgree) {
  TensorJob job(ranks(2));
  std::vector<std::string> before(2), after(2);
  job.onAll([&](Worker& worker) {
    const auto hook =
        std::make_shared<PowerSgdHook>(PowerSgdOptions{.rank = 1, .startAfter = 0, .minCompressionRate = 1});
    const DdpOptions options = smallBucketsWith(hook);
    Replica own(worker, {worker.self().name}, options);
    own.train(0, 1 + own.rank);
    const auto rank = static_cast<size_t>(own.rank);
    before[rank] = hook->description();
    hook->agree(ProcessGroup::make(worker, ranks(2)));
    after[rank] = hook->description();
  });
  EXPECT_NE(before[0], before[1]);
  EXPECT_EQ(after[0], before[0]);
  EXPECT_EQ(after[1], before[0]);
}

// Statistics begin anew.
TEST(Rebind, ChangesTheGroupBetweenSteps) {
  const std::vector<std::string> otherOrder = {"rank2", "rank0", "rank1"};
  TensorJob job(ranks(3));
  std::vector<End> ends(3);
  job.onAll([&](Worker& worker) {
    Replica own(worker, ranks(3));
    own.train(0, kFault + 1);
    const ProcessGroup group = ProcessGroup::make(worker, otherOrder);
    End& end = ends[static_cast<size_t>(own.rank)];
    EXPECT_TRUE(own.ddp.rebind(group));
    EXPECT_EQ(own.ddp.stats().averagedPasses, 0U);
    EXPECT_EQ(own.ddp.stats().members, otherOrder);
    end.isAveraged = true;
    end.areEqual = own.goOnWith(ProcessGroup::make(worker, ranks(3)));
    end.state = own.state();
  });
  expectAsOneProcess({0, 1, 2}, {0, 1, 2}, ends);
}

// Rank 1 is the new group's rank 0, and is lost before it has sent its values.
TEST(Rebind, ThatFailsChangesNoValue) {
  TensorJob job(ranks(3));
  job.onAll([&](Worker& worker) {
    Replica own(worker, ranks(3));
    own.backward(0);
    const ProcessGroup next = ProcessGroup::make(worker, {"rank1", "rank0", "rank2"});
    if (own.rank == 1) {
      ddp::compareReplicas(*own.net, next, smallBuckets(), /*isRebind=*/true);
      ddp::ofAllRanks(next, ddp::Progress());
      return job.kill(1);
    }
    {
      const at::NoGradGuard noGrad;
      own.net->first.add_(1 + own.rank);
      own.net->offset.add_(1 + own.rank);
    }
    const std::vector<at::Tensor> before = copiesOf(own.net->parameters()), buffers = copiesOf(own.net->buffers());
    const std::vector<at::Tensor> gradients = copiesOf({own.net->first.grad(), own.net->bias.grad()});
    EXPECT_EQ(statusOf<PeerLostError>([&] { static_cast<void>(own.ddp.rebind(next)); }).worker(), "rank1");
    expectEqualBits({own.net->first.grad(), own.net->bias.grad()}, gradients);
    expectEqualBits(copiesOf(own.net->parameters()), before);
    expectEqualBits(copiesOf(own.net->buffers()), buffers);
    EXPECT_EQ(own.ddp.group().members(), ranks(3));
  });
}

// And its hook, with what it holds back.
TEST(Rebind, RefusesReplicasThatDifferAndKeepsItsGroup) {
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    const auto hook = std::make_shared<TopKHook>(TopKOptions{.ratio = 0.1});
    const DdpOptions options = smallBucketsWith(hook);
    Replica own(worker, ranks(2), options);
    own.train(0, kFault);
    const OptimizerState before = hook->state();
    const ProcessGroup next = ProcessGroup::make(worker, {"rank1", "rank0"});
    if (own.rank == 1) own.net->skipped.set_requires_grad(false);
    EXPECT_TRUE(contains(messageOf<ArgumentError>([&] { static_cast<void>(own.ddp.rebind(next)); }), "skipped'"));
    own.net->skipped.set_requires_grad(true);
    EXPECT_EQ(own.ddp.group().members(), ranks(2));
    expectEqualStates(hook->state(), before);
    own.train(kFault, kSteps);
    own.ddp.verifyReplicas();
  });
}

// A loss while values are sent may reach one rank alone. Rank 1 has got averages once less. Rank 0 plays its part up to
// the end, and then rebind fails there, so that its optimizer stays; rank 1 has averages as many times as rank 0 now.
TEST(Rebind, ThatEndsWellOnOneRankAloneLeavesOptimizersUnequal) {
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    const auto hook = std::make_shared<ThrowingHook>();
    const DdpOptions options = smallBucketsWith(hook);
    Replica own(worker, ranks(2), options);
    own.train(0, kFault);
    if (own.rank == 1) {
      hook->where = ThrowingHook::Where::kAtTheEnd;
      EXPECT_THROW(own.backward(kFault), std::runtime_error);
      hook->where = ThrowingHook::Where::kNowhere;
    } else {
      own.train(kFault, kFault + 1);
    }
    const ProcessGroup first = ProcessGroup::make(worker, ranks(2)), second = ProcessGroup::make(worker, ranks(2));
    if (own.rank == 0) {
      ddp::compareReplicas(*own.net, first, options, /*isRebind=*/true);
      ddp::ofAllRanks(first, ddp::Progress{.averages = kFault + 1});
      hook->agree(first);
      ddp::receiveValues(*own.net, first, 0);
    } else {
      EXPECT_FALSE(own.ddp.rebind(first));
      own.renewOptimizer();
    }
    EXPECT_FALSE(own.ddp.rebind(second)) << "rank 0 has its old optimizer";
    own.renewOptimizer();
    own.train(kFault + 1, kSteps);
    own.ddp.verifyReplicas();
  });
}

// What only one rank cannot do ends the new group on all.
TEST(Rebind, ThatFailsOnARankAloneFailsOnAll) {
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    const auto hook = std::make_shared<ThrowingHook>();
    const DdpOptions options = smallBucketsWith(hook);
    Replica own(worker, ranks(2), options);
    if (own.rank == 1) hook->where = ThrowingHook::Where::kAgree;
    // Nothing else would end the wait of rank 0.
    const ProcessGroup next = ProcessGroup::make(worker, ranks(2), {.timeout = kNoTimeout});
    const auto rebind = [&] { static_cast<void>(own.ddp.rebind(next)); };
    if (own.rank == 1) {
      EXPECT_THROW(rebind(), std::runtime_error);
    } else {
      EXPECT_TRUE(contains(messageOf<StateError>(rebind), "could not rebind (the hook fails)"));
    }
    hook->where = ThrowingHook::Where::kNowhere;
    own.train(0, kFault);
    EXPECT_TRUE(own.ddp.rebind(ProcessGroup::make(worker, ranks(2))));
    own.train(kFault, kSteps);
    own.ddp.verifyReplicas();
  });
}

// They are each rank's own.
TEST(Rebind, DropsGradientsThatWereNotAveraged) {
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    Replica own(worker, ranks(2));
    {
      const auto unaveraged = own.ddp.noSync();
      own.backward(0);
    }
    EXPECT_EQ(own.ddp.pendingPasses(), 1U);
    EXPECT_TRUE(own.ddp.rebind(ProcessGroup::make(worker, {"rank1", "rank0"})));
    EXPECT_EQ(own.ddp.pendingPasses(), 0U);
    for (const at::Tensor& parameter : own.net->parameters()) EXPECT_FALSE(parameter.grad().defined());
  });
}

// Momentum is each rank's own after it.
TEST(Rebind, AfterLocalSgdSaysThatOptimizersDiffer) {
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    Replica own(worker, ranks(2));
    {
      auto local = own.ddp.localSgd({.period = 2, .startAfter = 0});
      for (int step = 0; step < 2; ++step) {
        own.train(step, step + 1);
        local.step();
      }
      local.finish();
    }
    EXPECT_FALSE(own.ddp.rebind(ProcessGroup::make(worker, {"rank1", "rank0"})));
    EXPECT_TRUE(own.ddp.rebind(ProcessGroup::make(worker, ranks(2)))) << "they were made anew after the first one";
  });
}

// An operation may notice a loss before the group does. Nobody is lost here, so the group itself notices none.
TEST(LostWorker, IsNamedOnAllRanksWhereAnOperationNoticesItFirst) {
  TensorJob job(ranks(3));
  job.onAll([&](Worker& worker) {
    const auto hook = std::make_shared<ThrowingHook>();
    const DdpOptions options = smallBucketsWith(hook);
    Replica own(worker, ranks(3), options);
    if (own.rank == 1) hook->where = ThrowingHook::Where::kLoss;
    EXPECT_EQ(statusOf<PeerLostError>([&] { own.backward(0); }).worker(), "rank2");
    EXPECT_TRUE(eventually([&] { return own.ddp.state().condition == DdpCondition::kGroupLost; }));
    EXPECT_EQ(own.ddp.state().lostWorker, "rank2");
  });
}

// Throws in its second step of a pass, that of a later bucket.
class ThrowingSgd final : public torch::optim::SGD {
 public:
  using SGD::SGD;
  at::Tensor step(LossClosure closure = nullptr) override {
    if (throwsAfter-- == 0) {
      faulty->come();
      throw std::runtime_error("the optimizer fails");
    }
    return SGD::step(std::move(closure));
  }
  int throwsAfter = std::numeric_limits<int>::max();
  Meeting* faulty = nullptr;
};

// A pass in which the ranks `torn` step some parameters alone. The others have ended it by then.
void tear(Worker& worker, Meeting& faulty, const std::vector<int>& torn,
          const std::function<void(DistributedDataParallel<Net>&, bool)>& then) {
  Net net(0);
  const auto optimizer = std::make_shared<ThrowingSgd>(net->parameters(), torch::optim::SGDOptions(0.1));
  DdpOptions options = smallBuckets();
  options.optimizerInBackward = optimizer;
  DistributedDataParallel<Net> ddp(net, ProcessGroup::make(worker, ranks(3)), options);
  const int rank = worker.self().rank;
  const bool isTorn = std::find(torn.begin(), torn.end(), rank) != torn.end();
  const auto backward = [&] { ddp.forward(inputOf(rank, 0), false).square().mean().backward(); };
  if (isTorn) {
    optimizer->throwsAfter = 1;
    optimizer->faulty = &faulty;
  } else {
    backward();
    faulty.come();
  }
  EXPECT_THROW(backward(), Error);
  optimizer->throwsAfter = std::numeric_limits<int>::max();
  net->zero_grad();
  then(ddp, isTorn);
}

TEST(TornRank, GetsTheValuesOfAWholeOne) {
  TensorJob job(ranks(3));
  Meeting faulty(3);
  job.onAll([&](Worker& worker) {
    tear(worker, faulty, {0}, [&](DistributedDataParallel<Net>& ddp, bool isTorn) {
      EXPECT_TRUE(eventually([&] { return ddp.state().condition != DdpCondition::kUsable; }));
      if (isTorn) {
        EXPECT_EQ(ddp.state().condition, DdpCondition::kTorn);
        // A schedule that has not made the others' step.
        ddp.options().optimizerInBackward->param_groups()[0].options().set_lr(0.05);
      }
      const std::vector<at::Tensor> before = copiesOf(ddp->parameters());
      EXPECT_FALSE(ddp.rebind(ProcessGroup::make(worker, ranks(3))));
      EXPECT_EQ(ddp.state().condition, DdpCondition::kUsable);
      if (worker.self().rank == 1) expectEqualBits(copiesOf(ddp->parameters()), before);
      ddp.verifyReplicas();
    });
  });
}

TEST(TornRank, CannotGoOnWhereAllAre) {
  TensorJob job(ranks(3));
  Meeting faulty(3);
  job.onAll([&](Worker& worker) {
    tear(worker, faulty, {0, 1, 2}, [&](DistributedDataParallel<Net>& ddp, bool) {
      EXPECT_EQ(ddp.state().condition, DdpCondition::kTorn);
      const ProcessGroup next = ProcessGroup::make(worker, ranks(3));
      EXPECT_TRUE(contains(messageOf<StateError>([&] { static_cast<void>(ddp.rebind(next)); }),
                           "no rank with whole parameters"));
    });
  });
}

TEST(Rebind, IsRefusedWithinAPassAndUnderGuards) {
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    Replica own(worker, ranks(2));
    const ProcessGroup next = ProcessGroup::make(worker, {"rank1", "rank0"});
    const auto rebind = [&] { static_cast<void>(own.ddp.rebind(next)); };
    bool isWithin = true;
    own.net->bias.register_hook([&](const at::Tensor&) {
      if (std::exchange(isWithin, false)) {
        EXPECT_TRUE(contains(messageOf<StateError>(rebind), "rebind is called between passes"));
      }
    });
    own.train(0, 1);
    EXPECT_FALSE(isWithin);
    {
      const auto unaveraged = own.ddp.noSync();
      EXPECT_TRUE(contains(messageOf<StateError>(rebind), "a guard of noSync() or join(), or a LocalSgd, lives"));
    }
    {
      auto join = own.ddp.join([] {});
      EXPECT_TRUE(contains(messageOf<StateError>(rebind), "a guard of noSync() or join(), or a LocalSgd, lives"));
      join.finish();
    }
    {
      auto local = own.ddp.localSgd();
      EXPECT_TRUE(contains(messageOf<StateError>(rebind), "a guard of noSync() or join(), or a LocalSgd, lives"));
      EXPECT_TRUE(
          contains(messageOf<StateError>([&] { own.ddp.localSgd().finish(); }), "while another LocalSgd lives"));
      local.finish();
    }
    own.train(1, 2);
    rebind();
    own.train(2, 3);
    own.ddp.verifyReplicas();
  });
}

}  // namespace
}  // namespace treadle::test::rebind_test

// An optimizer that steps within averaged passes makes the bits that it makes after them, and steps nothing where a
// pass fails.

#include <torch/optim/lbfgs.h>
#include <torch/optim/schedulers/step_lr.h>

#include <future>
#include <stdexcept>

#include "tests/support/expect_error.h"
#include "tests/support/gate.h"
#include "tests/train/ddp/bucket_hooks.h"
#include "tests/train/ddp/hooks.h"
#include "tests/train/ddp/optimizers.h"
#include "tests/train/ddp/uneven.h"

namespace treadle::test::optimizer_in_backward_test {
namespace {

using namespace ddp_test;

// The same sums in each group.
ProcessGroup groupOf(Worker& worker, int size) {
  return ProcessGroup::make(worker, ranks(size), {.sumOrder = SumOrder::kRank});
}

DdpOptions with(std::shared_ptr<torch::optim::Optimizer> optimizer, std::shared_ptr<CommHook> hook = nullptr,
                DdpOptions options = smallBuckets()) {
  options.optimizerInBackward = std::move(optimizer);
  options.hook = std::move(hook);
  return options;
}

std::string whyNotMade(Worker& worker, Net& net, std::shared_ptr<torch::optim::Optimizer> optimizer) {
  return messageOf<ArgumentError>(
      [&] { DistributedDataParallel<Net>(net, groupOf(worker, 2), with(std::move(optimizer))); });
}

// A replica whose optimizer steps within the pass, or after it.
template <class Optimizer = torch::optim::SGD>
struct Replica {
  Replica(const ProcessGroup& group, bool stepsWithin, std::shared_ptr<CommHook> hook = nullptr,
          const DdpOptions& options = smallBuckets())
      : stepsWithin(stepsWithin), ddp(net, group, with(stepsWithin ? optimizer : nullptr, std::move(hook), options)) {}

  void zeroGrad() {
    if (!stepsWithin) optimizer->zero_grad();
  }
  void step() {
    if (!stepsWithin) optimizer->step();
  }
  std::vector<at::Tensor> state() {
    std::vector<at::Tensor> all = fieldsOf(*optimizer, net->parameters());
    for (const at::Tensor& parameter : net->parameters()) all.push_back(parameter.detach().clone());
    return all;
  }
  void expectNoGradients() const {
    for (const at::Tensor& parameter : net->parameters()) EXPECT_FALSE(parameter.grad().defined());
  }

  const bool stepsWithin;
  Net net{0};
  std::shared_ptr<Optimizer> optimizer =
      std::make_shared<Optimizer>(net->parameters(), OptimizerWith<Optimizer>::options());
  DistributedDataParallel<Net> ddp;
};

// Makes the same with a replica of each kind, by `train(replica, rank, step)`, and expects equal bits after each step.
template <class Optimizer = torch::optim::SGD, class Train>
void expectBitsOfStepsAfter(int size, int steps, Train train,
                            const std::function<std::shared_ptr<CommHook>()>& makeHook = {}) {
  TensorJob job(ranks(size));
  job.onAll([&](Worker& worker) {
    const auto hook = [&] { return makeHook ? makeHook() : nullptr; };
    Replica<Optimizer> within(groupOf(worker, size), true, hook()), after(groupOf(worker, size), false, hook());
    for (int step = 0; step < steps; ++step) {
      for (Replica<Optimizer>* one : {&within, &after}) train(*one, worker.self().rank, step);
      expectEqualBits(within.state(), after.state());
      within.expectNoGradients();
    }
    within.ddp.verifyReplicas();
  });
}

template <class Optimizer>
class OptimizerInBackwardOf : public ::testing::Test {};
TYPED_TEST_SUITE(OptimizerInBackwardOf, AllOptimizers);

// Some ranks do not use `skipped`, and in some steps no rank does.
TYPED_TEST(OptimizerInBackwardOf, MakesTheBitsOfStepsAfterThePass) {
  for (const int size : {1, 3})
    expectBitsOfStepsAfter<TypeParam>(size, 6, [](auto& replica, int rank, int step) {
      replica.zeroGrad();
      replica.net->forward(inputOf(rank, step), step == 1 || (step % 2 == 0 && rank == 0)).square().mean().backward();
      replica.step();
    });
}

// Another value than `field`, which is one of OptimizerWith.
void change(double& field) { field = field / 2 + 0.01; }
void change(bool& field) { field = !field; }
void change(std::tuple<double, double>& field) { change(std::get<1>(field)); }

// Each field of the options of the only group differs on rank 1. A step by the averages of all would make replicas
// differ, and by the fields that decide whether a sparse average is taken, one rank alone would refuse it.
TYPED_TEST(OptimizerInBackwardOf, HasTheSameOptionsOnAllRanks) {
  auto options = OptimizerWith<TypeParam>::options();
  using Fields = optim::Fields<decltype(options)>;
  std::vector<std::string> names;
  Fields::each(options, [&](const char* name, const auto&...) { names.emplace_back(name); });
  TensorJob job(ranks(2));
  for (const std::string& name : names)
    job.onAll([&](Worker& worker) {
      Net net(0);
      auto own = options;
      if (worker.self().rank == 1)
        Fields::each(own, [&](const char* other, auto& field) {
          if (other == name) change(field);
        });
      const std::string why = whyNotMade(worker, net, std::make_shared<TypeParam>(net->parameters(), own));
      EXPECT_TRUE(contains(why, "rank 0 has DdpOptions::optimizerInBackward with a group of lr 0.01, ")) << why;
      EXPECT_TRUE(contains(why, "rank 1 has DdpOptions::optimizerInBackward with a group of lr 0.01")) << why;
    });
}

// A parameter is in another group, which has other options.
TEST(OptimizerInBackward, HasTheSameGroupsOnAllRanks) {
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    Net net(0);
    std::vector<at::Tensor> fast = {net->first}, slow = {net->last};
    (worker.self().rank == 0 ? fast : slow).push_back(net->bias);
    if (worker.self().rank == 1) std::swap(slow.front(), slow.back());  // the same order of parameters
    std::vector<torch::optim::OptimizerParamGroup> groups;
    groups.emplace_back(fast, std::make_unique<torch::optim::SGDOptions>(0.5));
    groups.emplace_back(slow, std::make_unique<torch::optim::SGDOptions>(0.1));
    const std::string why =
        whyNotMade(worker, net, std::make_shared<torch::optim::SGD>(groups, torch::optim::SGDOptions(0.1)));
    EXPECT_TRUE(contains(why, "rank 0 has DdpOptions::optimizerInBackward with 'bias' next")) << why;
    EXPECT_TRUE(contains(why, "rank 1 has DdpOptions::optimizerInBackward with a new group next")) << why;
  });
}

TEST(OptimizerInBackward, HasTheSameOptionsWhereRanksRebindAfterAsManySteps) {
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    Replica<> within(groupOf(worker, 2), true);
    const auto rebind = [&] { return within.ddp.rebind(groupOf(worker, 2)); };
    const auto setRate = [&](double rate) { within.optimizer->param_groups()[0].options().set_lr(rate); };
    if (worker.self().rank == 1) setRate(0.5);
    const std::string why = messageOf<ArgumentError>([&] { static_cast<void>(rebind()); });
    EXPECT_TRUE(contains(why, "rank 1 has optimizerInBackward with a group of lr 0.5, ")) << why;
    setRate(0.25);
    EXPECT_TRUE(rebind());
  });
}

TEST(OptimizerInBackward, StepsBySumsOfPassesUnderNoSync) {
  expectBitsOfStepsAfter(2, 4, [](auto& replica, int rank, int step) {
    replica.zeroGrad();
    {
      auto unaveraged = replica.ddp.noSync();
      replica.net->forward(inputOf(rank, 2 * step), false).square().mean().backward();
    }
    replica.net->forward(inputOf(rank, 2 * step + 1), true).square().mean().backward();
    replica.step();
  });
}

TEST(OptimizerInBackward, StepsOnRanksWithoutABatch) {
  expectBitsOfStepsAfter(3, 5, [](auto& replica, int rank, int step) {
    replica.zeroGrad();
    rank == step % 3 ? replica.ddp.skipPass()
                     : replica.net->forward(inputOf(rank, step), false).square().mean().backward();
    replica.step();
  });
}

class OptimizerInBackwardWith : public ::testing::TestWithParam<Divisor> {};

// Averages are weighted, buffers follow the buckets, and a parameter that no rank uses is in no bucket.
TEST_P(OptimizerInBackwardWith, StepsByAveragesOfEachDivisor) {
  for (const UnusedParameters unused : {UnusedParameters::kPerPass, UnusedParameters::kStatic}) {
    DdpOptions options = smallBuckets();
    options.divisor = GetParam();
    options.unusedParameters = unused;
    options.buffers = Buffers::kAverage;
    TensorJob job(ranks(3));
    job.onAll([&](Worker& worker) {
      const int rank = worker.self().rank;
      Replica<> within(groupOf(worker, 3), true, nullptr, options), after(groupOf(worker, 3), false, nullptr, options);
      for (int step = 0; step < 5; ++step) {
        for (Replica<>* one : {&within, &after}) {
          one->zeroGrad();
          if (GetParam() == Divisor::kWeights) one->ddp.setWeight(weightOf(rank));
          one->net->offset.add_(rank);
          rank == step % 3 ? one->ddp.skipPass()
                           : one->net->forward(inputOf(rank, step), /*skip=*/true).square().mean().backward();
          one->step();
        }
        expectEqualBits(within.state(), after.state());
        EXPECT_TRUE(haveEqualBits(within.net->offset, after.net->offset));
        within.expectNoGradients();
      }
      within.ddp.verifyReplicas();
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Divisors, OptimizerInBackwardWith,
                         ::testing::Values(Divisor::kWorldSize, Divisor::kActiveRanks, Divisor::kSum,
                                           Divisor::kWeights),
                         [](const auto& info) { return std::string(ddp::nameOf(info.param)); });

TEST(OptimizerInBackward, StepsWhenSynchronizeAverages) {
  expectBitsOfStepsAfter(2, 3, [](auto& replica, int rank, int step) {
    replica.zeroGrad();
    {
      auto unaveraged = replica.ddp.noSync();
      replica.net->forward(inputOf(rank, step), false).square().mean().backward();
    }
    replica.ddp.synchronize();
    replica.step();
  });
}

// A bucket goes again, as a pass within the pass adds to it.
TEST(OptimizerInBackward, StepsBucketsThatGoAgainOnce) {
  expectBitsOfStepsAfter(2, 4, [](auto& replica, int rank, int step) {
    replica.zeroGrad();
    lossThatComesTwice(replica.net, rank, step).backward();
    replica.step();
  });
}

TEST(OptimizerInBackward, StepsAfterTheLastRoundOfAHook) {
  const std::vector<std::function<std::shared_ptr<CommHook>()>> hooks = {
      [] { return std::make_shared<CastHook>(at::kBFloat16); },
      [] { return std::make_shared<PowerSgdHook>(PowerSgdOptions{.rank = 1, .startAfter = 1}); },
      [] { return std::make_shared<TopKHook>(TopKOptions{.ratio = 0.1}); }};
  for (const auto& makeHook : hooks)
    expectBitsOfStepsAfter(
        3, 4,
        [](auto& replica, int rank, int step) {
          replica.zeroGrad();
          replica.net->forward(inputOf(rank, step), rank == 1).square().mean().backward();
          replica.step();
        },
        makeHook);
}

TEST(OptimizerInBackward, MakesTheStepsOfOtherRanksUnderJoin) {
  const Counts counts = {2, 4, 0};
  TensorJob job(ranks(3));
  std::vector<std::vector<at::Tensor>> ofRanks(counts.size());
  job.onAll([&](Worker& worker) {
    const auto rank = static_cast<size_t>(worker.self().rank);
    Replica<> within(groupOf(worker, 3), true), after(groupOf(worker, 3), false);
    for (Replica<>* one : {&within, &after}) {
      auto join = one->ddp.join([&] { one->step(); });
      for (int batch = 0; batch < counts[rank]; ++batch) {
        one->zeroGrad();
        lossOfBatch(*one->net, worker.self().rank, batch).backward();
        one->step();
      }
      join.finish();
    }
    expectEqualBits(within.state(), after.state());
    ofRanks[rank] = within.state();
  });
  for (const auto& one : ofRanks) expectEqualBits(one, ofRanks.front());
}

TEST(OptimizerInBackward, OfEachModuleStepsInAPassOfSeveral) {
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    const int rank = worker.self().rank;
    std::vector<std::vector<at::Tensor>> states;
    for (const bool stepsWithin : {true, false}) {
      Replica<> a(groupOf(worker, 2), stepsWithin), b(groupOf(worker, 2), stepsWithin);
      for (int step = 0; step < 3; ++step) {
        for (Replica<>* one : {&a, &b}) one->zeroGrad();
        const at::Tensor first = a.net->forward(inputOf(rank, step), false).square().mean();
        const at::Tensor other = b.net->forward(inputOf(rank, step + 5), false).square().mean();
        (rank == 0 ? first + other : other + first).backward();
        for (Replica<>* one : {&a, &b}) one->step();
      }
      states.push_back(a.state());
      states.push_back(b.state());
    }
    expectEqualBits(states[0], states[2]);
    expectEqualBits(states[1], states[3]);
  });
}

// Two groups with their own options, which a schedule changes. The optimizer does not have `last`.
TEST(OptimizerInBackward, MayHaveGroupsAndAScheduleAndLeaveParametersOut) {
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    const int rank = worker.self().rank;
    Net within(0), after(0);
    const auto makeOptimizer = [](Net& net) {
      std::vector<torch::optim::OptimizerParamGroup> groups;
      groups.emplace_back(std::vector<at::Tensor>{net->first, net->skipped});
      groups.emplace_back(std::vector<at::Tensor>{net->bias},
                          std::make_unique<torch::optim::SGDOptions>(torch::optim::SGDOptions(0.5)));
      return std::make_shared<torch::optim::SGD>(groups, torch::optim::SGDOptions(0.1));
    };
    const auto optimizer = makeOptimizer(within), optimizerAfter = makeOptimizer(after);
    DistributedDataParallel<Net> ddp(within, groupOf(worker, 2), with(optimizer));
    DistributedDataParallel<Net> ddpAfter(after, groupOf(worker, 2), smallBuckets());
    torch::optim::StepLR schedule(*optimizer, 2, 0.5), scheduleAfter(*optimizerAfter, 2, 0.5);
    for (int step = 0; step < 5; ++step) {
      within->last.mutable_grad() = at::Tensor();
      after->zero_grad();
      ddp.forward(inputOf(rank, step), false).square().mean().backward();
      ddpAfter.forward(inputOf(rank, step), false).square().mean().backward();
      EXPECT_TRUE(haveEqualBits(within->last.grad(), after->last.grad()));
      for (const at::Tensor& stepped : {within->first, within->skipped, within->bias})
        EXPECT_FALSE(stepped.grad().defined());
      optimizerAfter->step();
      schedule.step();
      scheduleAfter.step();
      for (const auto& entry : after->named_parameters())
        EXPECT_TRUE(haveEqualBits(within->named_parameters()[entry.key()], entry.value())) << entry.key();
    }
    EXPECT_LT(optimizer->param_groups()[1].options().get_lr(), 0.5);
  });
}

// ---- when it steps

class Watched final : public torch::optim::SGD {
 public:
  using torch::optim::SGD::SGD;
  at::Tensor step(LossClosure closure = nullptr) override {
    ++steps;
    if (before) before();
    return SGD::step(std::move(closure));
  }
  std::function<void()> before;
  int steps = 0;
};

std::shared_ptr<Watched> watched(Net& net) {
  return std::make_shared<Watched>(net->parameters(), torch::optim::SGDOptions(0.1));
}

// Throws where all averages are there.
class ThrowsAtTheEnd final : public CommHook {
 public:
  std::string description() const override { return "ThrowsAtTheEnd"; }
  Reduction reduce(Exchange& exchange, const ddp::Bucket& bucket) override {
    at::Tensor average = bucket.flat;
    exchange.add(allReduce(exchange.group(), average, ReduceOp::kAverage));
    co_return;
  }
  void passAveraged(const std::vector<bool>& /*isUsed*/) override {
    if (throws) throw std::runtime_error("the hook fails");
  }
  bool throws = false;
};

TEST(OptimizerInBackward, StepsABucketWhileALaterOneIsOnItsWay) {
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    Net net(0);
    const auto optimizer = watched(net);
    const auto hook = std::make_shared<Held>();
    DistributedDataParallel<Net> ddp(net, groupOf(worker, 2), with(optimizer, hook));
    Gate hasStepped;
    optimizer->before = [&] { hasStepped.open(); };
    auto releasing = std::async(std::launch::async, [&] {
      hasStepped.wait();
      hook->release();
    });
    ddp.forward(inputOf(worker.self().rank, 0), false).square().mean().backward();
    releasing.get();
    EXPECT_GE(optimizer->steps, 3);  // one for each bucket
    ddp.verifyReplicas();
  });
}

// ---- failures

TEST(OptimizerInBackward, StepsNothingInAPassThatFailsOnARank) {
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    const int rank = worker.self().rank;
    Net net(0);
    const auto optimizer = watched(net);
    DistributedDataParallel<Net> ddp(net, groupOf(worker, 2), with(optimizer));
    for (const bool fails : {true, false, true, false}) {
      const at::Tensor input = inputOf(rank, 0).requires_grad_(), before = net->first.detach().clone();
      optimizer->zero_grad();
      // The node that fails is behind all parameters: by then the averages are there.
      const at::Tensor loss = ddp.forward(fails && rank == 1 ? Broken::apply(input) : input, false).square().mean();
      optimizer->steps = 0;
      if (fails) {
        EXPECT_THROW(loss.backward(), std::exception);
      } else {
        loss.backward();
      }
      EXPECT_EQ(optimizer->steps > 0, !fails);
      EXPECT_EQ(haveEqualBits(net->first, before), fails);
    }
    ddp.verifyReplicas();
  });
}

// Some of its parameters are stepped, and others not.
TEST(OptimizerInBackward, ThatThrowsOnARankEndsTheGroup) {
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    const int rank = worker.self().rank;
    Net net(0);
    const auto optimizer = watched(net);
    DistributedDataParallel<Net> ddp(net, groupOf(worker, 2), with(optimizer));
    const auto backward = [&] { ddp.forward(inputOf(rank, 0), false).square().mean().backward(); };
    if (rank == 1) {
      optimizer->before = [&] {
        if (optimizer->steps == 2) throw std::runtime_error("no more memory");
      };
      const std::string why = messageOf<Error>(backward);
      EXPECT_TRUE(contains(why, "no more memory") && contains(why, "DdpOptions::optimizerInBackward")) << why;
      EXPECT_EQ(optimizer->steps, 2);
    }
    const std::string why = messageOf<StateError>([&] {
      backward();
      backward();
    });
    EXPECT_TRUE(contains(why, "'rank1' (rank 1) could not end an averaged backward pass (")) << why;
    EXPECT_TRUE(contains(why, "or load the last checkpoint, on all ranks")) << why;
  });
}

// On rank 1 the optimizer of the module whose end comes first throws, so the other one is not stepped there. It is on
// rank 0, so both groups end.
TEST(OptimizerInBackward, ThatThrowsEndsTheGroupsOfOtherModulesInThePass) {
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    const int rank = worker.self().rank;
    Net a(0), b(0);
    const auto stepsA = watched(a), stepsB = watched(b);
    DistributedDataParallel<Net> ddpA(a, groupOf(worker, 2), with(stepsA)), ddpB(b, groupOf(worker, 2), with(stepsB));
    const auto lossOf = [&](Net& net) { return net->forward(inputOf(rank, 0), false).square().mean(); };
    if (rank == 1) {
      for (const auto& optimizer : {stepsA, stepsB})
        optimizer->before = [] { throw std::runtime_error("no more memory"); };
      EXPECT_THROW((lossOf(a) + lossOf(b)).backward(), Error);
      for (const auto& optimizer : {stepsA, stepsB}) optimizer->before = [] {};
    } else {
      try {
        (lossOf(a) + lossOf(b)).backward();
      } catch (const Error&) {}  // if it is still under way when the groups end
    }
    EXPECT_THROW(lossOf(a).backward(), Error);
    EXPECT_THROW(lossOf(b).backward(), Error);
  });
}

// All parameters are stepped by then, so the next pass finds equal replicas.
TEST(OptimizerInBackward, LeavesTheGroupWhereAHookThrowsAfterwards) {
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    const auto hook = std::make_shared<ThrowsAtTheEnd>();
    Replica<> replica(groupOf(worker, 2), true, hook);
    const auto backward = [&] {
      replica.net->forward(inputOf(worker.self().rank, 0), false).square().mean().backward();
    };
    hook->throws = worker.self().rank == 1;
    if (hook->throws) {
      EXPECT_THROW(backward(), std::runtime_error);
    } else {
      backward();
    }
    hook->throws = false;
    backward();
    replica.ddp.verifyReplicas();
  });
}

// An all-reduce that fails on rank 1 alone, for the first bucket or for a later one, when others may have stepped.
class FailingBucket : public ::testing::TestWithParam<size_t> {};

TEST_P(FailingBucket, EndsTheGroupOnAllRanks) {
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    const int rank = worker.self().rank;
    const auto hook = std::make_shared<FailsForAParameter>();
    Replica<> replica(groupOf(worker, 2), true, hook);
    if (rank == 1) hook->parameter = GetParam();
    const auto backward = [&] { replica.net->forward(inputOf(rank, 0), false).square().mean().backward(); };
    if (rank == 1) {
      EXPECT_TRUE(contains(messageOf<Error>(backward), "this all-reduce has failed"));
    } else {
      try {
        backward();
      } catch (const Error&) {}  // if it is still under way when the group ends
    }
    EXPECT_THROW(backward(), Error);
  });
}

// In the first pass, buckets have parameters in reverse order.
INSTANTIATE_TEST_SUITE_P(Parameters, FailingBucket, ::testing::Values(size_t{0}, size_t{3}));

// ---- refusals

TEST(OptimizerInBackward, RefusesDistributedPassesOnAllRanks) {
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    const int rank = worker.self().rank;
    Replica<> replica(groupOf(worker, 2), true);
    const at::Tensor loss = replica.ddp.forward(inputOf(rank, 0), false).square().mean();
    if (rank == 0) {
      AutogradContext context(worker);
      const std::string why = messageOf<StateError>([&] { context.backward({loss}); });
      EXPECT_TRUE(contains(why, "a distributed backward pass leaves gradients in its context")) << why;
    } else {
      EXPECT_THROW(loss.backward(), CancelledError);
    }
    replica.optimizer->zero_grad();
    replica.ddp.forward(inputOf(rank, 0), false).square().mean().backward();
    replica.ddp.verifyReplicas();
  });
}

TEST(OptimizerInBackward, RefusesParametersAndClassesThatCannotBe) {
  TensorJob job(ranks(1));
  Net net(0);
  const auto expectRefused = [&](std::shared_ptr<torch::optim::Optimizer> optimizer, const std::string& text) {
    const std::string why = messageOf<ArgumentError>(
        [&] { DistributedDataParallel<Net>(net, groupOf(job[0], 1), with(std::move(optimizer))); });
    EXPECT_TRUE(contains(why, text)) << why;
  };
  const torch::optim::SGDOptions options(0.1);
  const std::vector<at::Tensor> others = {net->first, at::ones({2}, at::kDouble).requires_grad_()};
  expectRefused(std::make_shared<torch::optim::SGD>(others, options), "a parameter that is none of the module");
  expectRefused(std::make_shared<torch::optim::LBFGS>(net->parameters()), "cannot be LBFGS");

  const auto optimizer = std::make_shared<torch::optim::SGD>(std::vector<at::Tensor>{net->first}, options);
  DistributedDataParallel<Net> ddp(net, groupOf(job[0], 1), with(optimizer));
  optimizer->add_param_group(torch::optim::OptimizerParamGroup(std::vector<at::Tensor>{net->last}));
  const auto backward = [&] { ddp.forward(inputOf(0, 0), false).square().mean().backward(); };
  EXPECT_TRUE(contains(messageOf<StateError>(backward), "has other parameters than when"));
  EXPECT_TRUE(contains(messageOf<ArgumentError>([&] { ddp.localSgd().finish(); }), "optimizerInBackward"));
}

// libtorch steps whatever has a gradient, and a parameter that is frozen keeps its last one.
TEST(OptimizerInBackward, LeavesFrozenParametersAlone) {
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    Net net(0);
    const auto optimizer = std::make_shared<torch::optim::SGD>(net->parameters(), torch::optim::SGDOptions(0.1));
    net->skipped.mutable_grad() = at::ones_like(net->skipped);
    net->skipped.set_requires_grad(false);
    const at::Tensor before = net->skipped.clone(), first = net->first.detach().clone();
    DistributedDataParallel<Net> ddp(net, groupOf(worker, 2), with(optimizer));
    ddp.forward(inputOf(worker.self().rank, 0), false).square().mean().backward();
    EXPECT_TRUE(haveEqualBits(net->skipped, before));
    EXPECT_FALSE(haveEqualBits(net->first, first));
  });
}

TEST(OptimizerInBackward, ThatHasASharedParameterTwiceIsRefused) {
  TensorJob job(ranks(1));
  Net net(0);
  std::vector<at::Tensor> twice = net->parameters();
  twice.push_back(net->last);
  const auto optimizer = std::make_shared<torch::optim::Adam>(twice);
  const std::string why =
      messageOf<ArgumentError>([&] { DistributedDataParallel<Net>(net, groupOf(job[0], 1), with(optimizer)); });
  EXPECT_TRUE(contains(why, "has parameter 'last' twice")) << why;
}

TEST(OptimizerInBackward, ThatDiffersBetweenRanksIsNamed) {
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    Net net(0);
    std::shared_ptr<torch::optim::Optimizer> optimizer;
    if (worker.self().rank == 1) optimizer = std::make_shared<torch::optim::AdamW>(net->parameters());
    const std::string why = whyNotMade(worker, net, std::move(optimizer));
    EXPECT_TRUE(contains(why,
                         "rank 0 has DdpOptions::optimizerInBackward none; rank 1 has "
                         "DdpOptions::optimizerInBackward torch::optim::AdamW"))
        << why;
  });
}

}  // namespace
}  // namespace treadle::test::optimizer_in_backward_test

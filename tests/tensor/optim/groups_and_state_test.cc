// Parameter groups, options that change between steps, and state that is saved and loaded, beside libtorch's own
// optimizers.

#include <ATen/ATen.h>
#include <torch/optim/schedulers/reduce_on_plateau_scheduler.h>
#include <torch/optim/schedulers/step_lr.h>
#include <treadle/optim.h>

#include "tests/support/gate.h"
#include "tests/support/tensor_job.h"

namespace treadle::test::groups_and_state_test {
namespace {

using torch::optim::SGD, torch::optim::SGDOptions, torch::optim::Adam, torch::optim::AdamOptions;

constexpr size_t kParameters = 3;

at::Tensor begun(size_t number) { return at::arange(1, 7, at::kDouble).reshape({2, 3}) / (3.0 + number); }

RRef<at::Tensor> makeParameter(CallContext& call, const at::Tensor& value) {
  return call.worker().makeRRef(value.clone().requires_grad_());
}
at::Tensor lossThere(const RRef<at::Tensor>& parameter, const at::Tensor& x) {
  return (parameter.localValue().pow(2) * x).sum();
}
at::Tensor inputOf(int step) { return begun(0).cos() * step; }

// An optimizer of a program, whose state has no names.
struct Own : SGD {
  using SGD::SGD;
};

class OptimizerState : public ::testing::Test {
 protected:
  static Functions functions() {
    Functions functions;
    functions.add<&makeParameter>("makeParameter").add<&lossThere>("lossThere");
    return addOptimizer<Own, SGDOptions>(functions, "Own");
  }

  // One parameter on each worker; the first, which is on the worker of rank `first`, begins with values[0].
  std::vector<RRef<at::Tensor>> parametersWith(const std::vector<at::Tensor>& values, size_t first = 0) {
    std::vector<RRef<at::Tensor>> references;
    for (size_t i = 0; i < kParameters; ++i)
      references.push_back(a.call<&makeParameter>(static_cast<int>((first + i) % kParameters), values[i]));
    return references;
  }
  std::vector<RRef<at::Tensor>> parameters() { return parametersWith({begun(0), begun(1), begun(2)}); }
  std::vector<at::Tensor> valuesOf(const std::vector<RRef<at::Tensor>>& references) {
    std::vector<at::Tensor> values;
    for (const auto& reference : references) values.push_back(reference.toHere().detach().clone());
    return values;
  }

  void step(DistributedOptimizer& optimizer, const std::vector<RRef<at::Tensor>>& references, int number) {
    AutogradContext context(a);
    at::Tensor loss = at::zeros({}, at::kDouble);
    for (const RRef<at::Tensor>& reference : references)
      loss = loss + a.call<&lossThere>(reference.owner().name, reference, inputOf(number));
    context.backward({loss});
    optimizer.step(context);
  }
  static void stepAlone(torch::optim::Optimizer& optimizer, const std::vector<at::Tensor>& alone, int number) {
    optimizer.zero_grad();
    at::Tensor loss = at::zeros({}, at::kDouble);
    for (const at::Tensor& parameter : alone) loss = loss + (parameter.pow(2) * inputOf(number)).sum();
    loss.backward();
    optimizer.step();
  }
  static std::vector<at::Tensor> leaves() {
    std::vector<at::Tensor> alone;
    for (size_t i = 0; i < kParameters; ++i) alone.push_back(begun(i).requires_grad_());
    return alone;
  }
  void expectEqual(const std::vector<RRef<at::Tensor>>& references, const std::vector<at::Tensor>& expected) {
    std::vector<at::Tensor> values = valuesOf(references);
    for (size_t i = 0; i < kParameters; ++i) EXPECT_TRUE(close(values[i], expected[i].detach(), 0)) << i;
  }

  // A group of two and one of one: five steps here and by libtorch.
  template <class Optimizer, class Options>
  void expectGroupsAsLocal(const Options& defaults, const Options& ofSecond) {
    std::vector<at::Tensor> alone = leaves();
    std::vector<torch::optim::OptimizerParamGroup> groups = {torch::optim::OptimizerParamGroup({alone[0], alone[1]})};
    groups.emplace_back(std::vector<at::Tensor>{alone[2]}, std::make_unique<Options>(ofSecond));
    Optimizer local(groups, defaults);
    auto references = parameters();
    auto optimizer = DistributedOptimizer::make<Optimizer>(
        a, {{{references[0], references[1]}}, {{references[2]}, ofSecond}}, defaults);
    for (int number = 1; number <= 5; ++number) {
      step(optimizer, references, number);
      stepAlone(local, alone, number);
    }
    expectEqual(references, alone);
  }

  // Ten steps at a stretch, and five, a new optimizer with the state of the first over new parameters, on the same
  // workers or on others, and five.
  template <class Optimizer, class Options>
  void expectResumes(const Options& options, const Options& others) {
    auto straight = parameters(), first = parameters();
    auto one = DistributedOptimizer::make<Optimizer>(a, straight, options);
    auto before = DistributedOptimizer::make<Optimizer>(a, first, options);
    for (int number = 1; number <= 10; ++number) step(one, straight, number);
    for (int number = 1; number <= 5; ++number) step(before, first, number);
    for (const size_t firstRank : {0, 1}) {
      auto second = parametersWith(valuesOf(first), firstRank);
      auto after = DistributedOptimizer::make<Optimizer>(a, second, others);
      after.load(before.state());
      for (int number = 6; number <= 10; ++number) step(after, second, number);
      expectEqual(second, valuesOf(straight));
    }
  }

  // By schedulers of this class, each of which makes a step after each step of its optimizer.
  template <class Scheduler, class StepOf, class... Arguments>
  void expectScheduled(StepOf stepOf, Arguments... arguments) {
    std::vector<at::Tensor> alone = leaves();
    SGD local(alone, SGDOptions(0.1));
    auto references = parameters();
    auto optimizer = DistributedOptimizer::make<SGD>(a, references, SGDOptions(0.1));
    Scheduler schedule(optimizer.groups(), arguments...), localSchedule(local, arguments...);
    for (int number = 1; number <= 6; ++number) {
      step(optimizer, references, number);
      stepAlone(local, alone, number);
      stepOf(schedule);
      stepOf(localSchedule);
    }
    EXPECT_LT(optimizer.learningRate(), 0.1);
    EXPECT_EQ(optimizer.learningRate(), local.param_groups()[0].options().get_lr());
    expectEqual(references, alone);
    EXPECT_TRUE(contains(messageOf<StateError>([&] { optimizer.groups().step(); }), "DistributedOptimizer"));
  }

  TensorJob job{{"A", "B", "C"}, functions()};
  Worker& a = job[0];
};

TEST_F(OptimizerState, GroupsHaveTheirOwnOptions) {
  expectGroupsAsLocal<SGD>(SGDOptions(0.05).weight_decay(0.1), SGDOptions(0.2).momentum(0.9));
  expectGroupsAsLocal<Adam>(AdamOptions(0.05).eps(1e-3), AdamOptions().weight_decay(0.3));
}

TEST_F(OptimizerState, OptionsThatAreSetHoldFromTheNextStepOn) {
  std::vector<at::Tensor> alone = leaves();
  Adam local(alone, AdamOptions(0.05));
  auto references = parameters();
  auto optimizer = DistributedOptimizer::make<Adam>(a, references, AdamOptions(0.05));
  auto& localOptions = static_cast<AdamOptions&>(local.param_groups()[0].options());
  for (int number = 1; number <= 6; ++number) {
    if (number == 3) optimizer.setLearningRate(0.5), localOptions.lr(0.5);
    if (number == 5) optimizer.options<AdamOptions>().weight_decay(0.2), localOptions.weight_decay(0.2);
    step(optimizer, references, number);
    stepAlone(local, alone, number);
  }
  EXPECT_EQ(optimizer.learningRate(), 0.5);
  expectEqual(references, alone);
  EXPECT_TRUE(contains(messageOf<ArgumentError>([&] { optimizer.options<SGDOptions>(); }), "AdamOptions"));
  EXPECT_TRUE(contains(messageOf<ArgumentError>([&] { optimizer.options<AdamOptions>(1); }), "group 1"));
}

TEST_F(OptimizerState, LibtorchsSchedulersTakeTheGroups) {
  using torch::optim::StepLR, torch::optim::ReduceLROnPlateauScheduler;
  expectScheduled<StepLR>([](auto& schedule) { schedule.step(); }, 2, 0.5);
  // A loss that gets no better, with a patience of 1.
  expectScheduled<ReduceLROnPlateauScheduler>([](auto& schedule) { schedule.step(1.0F); },
                                              ReduceLROnPlateauScheduler::min, 0.5F, 1);
}

// All kinds of state: momentum, two and three moments, sums, and none.
TEST_F(OptimizerState, ResumesExactly) {
  using torch::optim::AdamW, torch::optim::AdamWOptions, torch::optim::Adagrad, torch::optim::AdagradOptions;
  using torch::optim::RMSprop, torch::optim::RMSpropOptions;
  expectResumes<SGD>(SGDOptions(0.05), SGDOptions(1));
  expectResumes<SGD>(SGDOptions(0.05).momentum(0.9).nesterov(true), SGDOptions(1));
  expectResumes<Adam>(AdamOptions(0.05).betas({0.7, 0.8}), AdamOptions(1));
  expectResumes<Adam>(AdamOptions(0.05).amsgrad(true), AdamOptions(1));
  expectResumes<AdamW>(AdamWOptions(0.05).amsgrad(true), AdamWOptions(1));
  expectResumes<Adagrad>(AdagradOptions(0.05).lr_decay(0.1), AdagradOptions(1));
  expectResumes<RMSprop>(RMSpropOptions(0.05), RMSpropOptions(1));
  expectResumes<RMSprop>(RMSpropOptions(0.05).momentum(0.5).centered(true), RMSpropOptions(1));
}

TEST_F(OptimizerState, IsOfOptionsAndOfWhatIsKeptByName) {
  auto references = parameters();
  auto optimizer = DistributedOptimizer::make<Adam>(a, references, AdamOptions(0.25));
  EXPECT_EQ(optimizer.state().size(), 5U) << "no parameter was stepped";
  step(optimizer, references, 1);
  treadle::OptimizerState state = optimizer.state();
  EXPECT_EQ(state.size(), 5U + 3 * kParameters);
  EXPECT_EQ(state.at("param_groups.0.lr").item<double>(), 0.25);
  EXPECT_EQ(state.at("state.2.step").item<int64_t>(), 1);
  EXPECT_EQ(state.at("state.1.exp_avg").sizes(), begun(1).sizes());
  const at::Tensor saved = state.at("state.0.exp_avg").clone();
  step(optimizer, references, 2);
  EXPECT_TRUE(at::equal(saved, state.at("state.0.exp_avg"))) << "a copy";
}

TEST_F(OptimizerState, OfAnotherOptimizerIsRefusedAndNothingIsChanged) {
  auto references = parameters();
  auto optimizer = DistributedOptimizer::make<Adam>(a, references, AdamOptions(0.25));
  step(optimizer, references, 1);
  const treadle::OptimizerState before = optimizer.state();
  const auto refused = [&](auto change) {
    treadle::OptimizerState state = before;
    state["param_groups.0.lr"] = at::ones({}, at::kDouble);
    change(state);
    std::string why = messageOf<ArgumentError>([&] { optimizer.load(state); });
    EXPECT_EQ(optimizer.learningRate(), 0.25);
    return why;
  };
  using State = treadle::OptimizerState;
  EXPECT_TRUE(contains(refused([](State& s) { s.erase("param_groups.0.eps"); }), "no 'param_groups.0.eps'"));
  EXPECT_TRUE(contains(refused([](State& s) { s["param_groups.0.eps"] = at::ones({}); }), "param_groups.0.eps"));
  EXPECT_TRUE(contains(refused([](State& s) { s["param_groups.1.lr"] = at::ones({}); }), "'param_groups.1.lr'"));
  EXPECT_TRUE(contains(refused([](State& s) { s["state.3.step"] = at::ones({}); }), "'state.3.step'"));
  EXPECT_TRUE(contains(refused([](State& s) { s["state.0.tide"] = at::ones({}); }), "'state.0.tide'"));
  EXPECT_TRUE(contains(refused([](State& s) { s.erase("state.0.exp_avg"); }), "'state.0.exp_avg'"));
  EXPECT_TRUE(contains(refused([](State& s) { s["state.0.exp_avg"] = at::ones({2}); }), "[2, 3]"));
  EXPECT_TRUE(contains(refused([](State& s) { s["state.0.exp_avg"] = at::Tensor(); }), "no tensor"));
  EXPECT_TRUE(contains(refused([](State& s) { s["state.0.step"] = -at::ones({}, at::kLong); }), "a count"));
  EXPECT_TRUE(contains(refused([](State& s) { s["param_groups.0.amsgrad"] = at::ones({}, at::kBool); }),
                       "'state.0.max_exp_avg_sq'"));
  auto sgd = DistributedOptimizer::make<SGD>(a, references, SGDOptions(1));
  EXPECT_TRUE(contains(messageOf<ArgumentError>([&] { sgd.load(before); }), "param_groups.0."));
  const treadle::OptimizerState after = optimizer.state();
  for (const std::string name : {"state.0.step", "state.0.exp_avg", "state.0.exp_avg_sq"})
    EXPECT_TRUE(at::equal(before.at(name), after.at(name))) << name;
}

TEST_F(OptimizerState, OfAParameterThatIsGivenTwiceIsNone) {
  auto references = parameters();
  EXPECT_TRUE(contains(messageOf<ArgumentError>([&] {
                         DistributedOptimizer::make<SGD>(a, {references[1], references[2], references[1]},
                                                         SGDOptions(1));
                       }),
                       "twice"));
}

TEST_F(OptimizerState, WithoutNamesIsNotSaved) {
  auto references = parameters();
  auto own = DistributedOptimizer::make<Own>(a, references, SGDOptions(0.5));
  step(own, references, 1);
  auto values = valuesOf(references);
  EXPECT_TRUE(close(values[0], begun(0) - begun(0) * inputOf(1)));
  EXPECT_TRUE(contains(messageOf<StateError>([&] { own.state(); }), "Own"));
  EXPECT_TRUE(contains(messageOf<StateError>([&] { own.load({}); }), "StateOf"));
}

TEST_F(OptimizerState, AParameterThatWasConvertedIsNotSteppedInItsOldMemory) {
  at::Tensor parameter = begun(0).requires_grad_();
  auto optimizer = DistributedOptimizer::make<SGD>(a, {a.makeRRef(parameter)}, SGDOptions(0.5));
  parameter.set_data(parameter.detach().to(at::kFloat));
  AutogradContext context(a);
  context.backward({parameter.sum()});
  EXPECT_TRUE(contains(messageOf<StateError>([&] { optimizer.step(); }), "converted"));
}

}  // namespace
}  // namespace treadle::test::groups_and_state_test

// Which parameters travel together, and in which order: that in which rank 0's gradients have come once.

#include <torch/optim/sgd.h>

#include <algorithm>
#include <map>
#include <numeric>

#include "tests/support/expect_error.h"
#include "tests/support/gate.h"
#include "tests/support/seeds.h"
#include "tests/train/ddp/net.h"
#include "treadle/train/ddp/arrival_order.h"

namespace treadle::test::bucket_plan_test {
namespace {

using namespace ddp_test;

using Buckets = std::vector<std::vector<size_t>>;

Buckets planned(const std::vector<at::Tensor>& parameters, const ddp::BucketLimits& limits) {
  return ddp::BucketPlan(parameters, ddp::reverseOrder(parameters.size()), limits).buckets();
}

TEST(BucketPlan, FillsFromTheLastParameterUpToTheLimits) {
  auto doubles = [](int64_t count) { return at::zeros({count}, at::kDouble); };
  std::vector<at::Tensor> parameters = {doubles(1), doubles(100), doubles(2), at::zeros({3}, at::kFloat), doubles(1)};
  EXPECT_EQ(planned(parameters, {.firstBytes = 16, .bytes = 64}), (Buckets{{4}, {3}, {2}, {1}, {0}}));
  parameters = {doubles(1), doubles(2), doubles(3), doubles(1), doubles(1)};
  EXPECT_EQ(planned(parameters, {.firstBytes = 16, .bytes = 64}), (Buckets{{4, 3}, {2, 1, 0}}));
  EXPECT_TRUE(planned({}, {}).empty());
}

TEST(BucketPlan, HasNoFirstBucketAboveTheOthers) {
  const std::vector<at::Tensor> parameters(4, at::zeros({4}, at::kDouble));
  EXPECT_EQ(planned(parameters, {.bytes = 64}), (Buckets{{3, 2}, {1, 0}}));
  EXPECT_EQ(planned(parameters, {.firstBytes = 96, .bytes = 64}), (Buckets{{3, 2, 1}, {0}})) << "the program's own";
}

// Layers of mixed precision alternate between dtypes.
TEST(BucketPlan, HasOneOpenBucketForEachDtype) {
  auto of = [](at::ScalarType dtype, int64_t count) { return at::zeros({count}, dtype); };
  const std::vector<at::Tensor> parameters = {of(at::kFloat, 1), of(at::kHalf, 2), of(at::kFloat, 3), of(at::kHalf, 4)};
  EXPECT_EQ(planned(parameters, {}), (Buckets{{3, 1}, {2, 0}}));
  EXPECT_EQ(planned(parameters, {.firstBytes = 8, .bytes = 64}), (Buckets{{3}, {2}, {1}, {0}}));
}

std::vector<size_t> shuffled(size_t count, Random& random) {
  std::vector<size_t> order(count);
  std::iota(order.begin(), order.end(), size_t{0});
  std::shuffle(order.begin(), order.end(), random);
  return order;
}

// The promises about the buckets, one rule after the other.
void expectRules(const std::vector<at::Tensor>& parameters, const std::vector<size_t>& order,
                 const ddp::BucketLimits& limits) {
  const ddp::BucketPlan plan(parameters, order, limits);
  std::map<at::ScalarType, std::vector<size_t>> byDtype, expectedByDtype;
  std::vector<size_t> firsts, flat;
  for (size_t bucket = 0; bucket < plan.buckets().size(); ++bucket) {
    const std::vector<size_t>& indexes = plan.buckets()[bucket];
    const at::ScalarType dtype = parameters[indexes.at(0)].scalar_type();
    const size_t limit = byDtype.contains(dtype) ? *limits.bytes : *limits.firstBytes;
    size_t bytes = 0;
    for (size_t position = 0; position < indexes.size(); ++position) {
      const size_t index = indexes[position];
      EXPECT_EQ(parameters[index].scalar_type(), dtype);
      EXPECT_EQ(plan.placeOf(index)->bucket, bucket);
      EXPECT_EQ(plan.placeOf(index)->position, position);
      bytes += parameters[index].nbytes();
      byDtype[dtype].push_back(index);
      flat.push_back(index);
    }
    EXPECT_TRUE(bytes <= limit || indexes.size() == 1);
    firsts.push_back(static_cast<size_t>(std::find(order.begin(), order.end(), indexes[0]) - order.begin()));
  }
  for (const size_t index : order) expectedByDtype[parameters[index].scalar_type()].push_back(index);
  EXPECT_EQ(byDtype, expectedByDtype) << "each once, and in order";
  EXPECT_TRUE(std::is_sorted(firsts.begin(), firsts.end()));
  EXPECT_EQ(ddp::BucketPlan(parameters, flat, limits).buckets(), plan.buckets()) << "a plan is an order";
}

TEST(BucketPlan, KeepsItsRulesForAnyOrder) {
  forSeeds(200, [](Random& random) {
    std::vector<at::Tensor> parameters;
    for (uint64_t left = pick(random, 12); left > 0; --left)
      parameters.push_back(at::empty({static_cast<int64_t>(pick(random, 9))},
                                     std::vector{at::kDouble, at::kFloat, at::kHalf}[pick(random, 3)]));
    const ddp::BucketLimits limits{.firstBytes = pick(random, 40), .bytes = pick(random, 100)};
    std::vector<size_t> order = shuffled(parameters.size(), random);
    expectRules(parameters, order, limits);
    order.resize(pick(random, order.size() + 1));
    expectRules(parameters, order, limits);
    const ddp::BucketPlan plan(parameters, order, limits);
    for (size_t index = 0; index < parameters.size(); ++index)
      EXPECT_EQ(plan.placeOf(index).has_value(), std::count(order.begin(), order.end(), index) > 0);
  });
}

TEST(ArrivalOrder, IsThatOfTheLastArrivalsThenReverse) {
  forSeeds(100, [](Random& random) {
    const size_t count = pick(random, 10);
    ddp::ArrivalOrder arrivals(count);
    for (int pass = 0; pass < 2; ++pass) {
      arrivals.clear();
      EXPECT_TRUE(arrivals.isEmpty());
      std::vector<size_t> expected;
      for (uint64_t left = count > 0 ? pick(random, 15) : 0; left > 0; --left) {
        const size_t index = pick(random, count);
        arrivals.add(index);
        std::erase(expected, index);
        expected.push_back(index);
      }
      EXPECT_EQ(arrivals.isEmpty(), expected.empty());
      for (size_t left = count; left > 0; --left)
        if (std::count(expected.begin(), expected.end(), left - 1) == 0) expected.push_back(left - 1);
      EXPECT_EQ(arrivals.order(), expected);
    }
  });
}

TEST(ExactChannel, CarriesTheOrderOfRankZero) {
  TensorJob job(ranks(3));
  job.onAll([&](Worker& worker) {
    ProcessGroup group = ProcessGroup::make(worker, job.names());
    ddp::ExactChannel channel(group, 300, 2, /*carriesOrder=*/true);
    channel.send({.active = true}).wait();
    EXPECT_TRUE(channel.order().value().empty()) << "nothing was marked";
    const std::vector<size_t> order = ddp::reverseOrder(300);
    for (const bool isValid : {true, false}) {
      channel.renew();
      if (group.rank() == 0) channel.markOrder(isValid ? order : std::vector<size_t>{7, 8, 7});
      channel.send({.weight = 0.1 * group.rank()}).wait();
      if (isValid) {
        EXPECT_EQ(channel.order().value(), order);
      } else {
        EXPECT_TRUE(contains(channel.order().status().message(), "does not have each parameter once"));
      }
      EXPECT_EQ(channel.reports()[2].weight, 0.1 * 2);
      EXPECT_FALSE(channel.anyUsed());
    }
  });
}

constexpr size_t kLayers = 7;

// A chain whose layers are used in another order than that of their registration.
struct ChainImpl : torch::nn::Module {
  explicit ChainImpl(uint64_t seed) {
    for (size_t i = 0; i < kLayers; ++i)
      layers.push_back(register_parameter("layer" + std::to_string(i), random({5, 5}, seed + i)));
  }
  at::Tensor loss(const at::Tensor& input, const std::vector<size_t>& order) {
    at::Tensor hidden = input;
    for (const size_t layer : order) hidden = at::tanh(hidden.mm(layers[layer]));
    return hidden.square().mean();
  }
  std::vector<at::Tensor> layers;
};
TORCH_MODULE(Chain);

// Backward comes to them from the last one to the first, and then there are those that were not used.
std::vector<std::string> namesAsTheyArrive(const std::vector<size_t>& order) {
  std::vector<std::string> names;
  for (auto layer = order.rbegin(); layer != order.rend(); ++layer) names.push_back("layer" + std::to_string(*layer));
  for (size_t left = kLayers; left > 0; --left)
    if (std::count(order.begin(), order.end(), left - 1) == 0) names.push_back("layer" + std::to_string(left - 1));
  return names;
}

DdpOptions inBuckets() { return {.buckets = {.firstBytes = 200, .bytes = 450}}; }  // of 1 and 2 layers

torch::optim::SGDOptions sgd() { return torch::optim::SGDOptions(0.1).momentum(0.9); }

class Rebuild : public ::testing::TestWithParam<bool> {};

// Each rank has an order of its own, of which one layer is not used.
TEST_P(Rebuild, FollowsRankZeroAndTrainsAsInOneProcess) {
  for (const int size : {1, 2, 3}) {
    Random random(seedOfRun() + static_cast<uint32_t>(size));
    std::vector<std::vector<size_t>> orders;
    for (int rank = 0; rank < size; ++rank) {
      orders.push_back(shuffled(kLayers, random));
      orders.back().pop_back();
    }
    auto lossOf = [&](Chain& net, int rank, int step) {
      return net->loss(inputOf(rank, step), orders[static_cast<size_t>(rank)]);
    };
    Chain alone(0);
    torch::optim::SGD optimizerAlone(alone->parameters(), sgd());
    for (int step = 0; step < 4; ++step) {
      optimizerAlone.zero_grad();
      for (int rank = 0; rank < size; ++rank) lossOf(alone, rank, step).div(size).backward();
      optimizerAlone.step();
    }
    TensorJob job(ranks(size));
    job.onAll([&](Worker& worker) {
      const int rank = worker.self().rank;
      Chain net(0);
      DistributedDataParallel<Chain> ddp(net, ProcessGroup::make(worker, job.names()), inBuckets());
      EXPECT_EQ(ddp.bucketOrder(), namesAsTheyArrive({}));
      torch::optim::SGD optimizer(net->parameters(), sgd());
      for (int step = 0; step < 4; ++step) {
        optimizer.zero_grad();
        if (GetParam()) {
          AutogradContext context(worker);
          context.backward({lossOf(net, rank, step)});
          for (const auto& [parameter, gradient] : context.gradients()) parameter.mutable_grad() = gradient;
        } else {
          lossOf(net, rank, step).backward();
        }
        optimizer.step();
        EXPECT_EQ(ddp.bucketOrder(), namesAsTheyArrive(orders[0]));
      }
      for (const auto& entry : alone->named_parameters())
        EXPECT_TRUE(close(net->named_parameters()[entry.key()], entry.value())) << entry.key();
      ddp.verifyReplicas();
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Passes, Rebuild, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "distributed" : "local"; });

// In the first pass the first bucket has a layer whose gradient comes last. In the second one rank 1 has all of the
// bucket before rank 0's pass comes to that layer.
TEST(RebuiltBuckets, GoWhileThePassStillRuns) {
  TensorJob job(ranks(2));
  Gate firstIsThere;
  const std::vector<size_t> order = ddp::reverseOrder(kLayers), reversed(order.rbegin(), order.rend());
  job.onAll([&](Worker& worker) {
    Chain net(0);
    ProcessGroup group = ProcessGroup::make(worker, job.names());
    if (worker.self().rank == 0) {
      DistributedDataParallel<Chain> ddp(net, group, inBuckets());
      net->loss(inputOf(0, 0), order).backward();
      net->layers.back().register_hook([&](const at::Tensor&) { firstIsThere.wait(); });
      net->loss(inputOf(0, 0), order).backward();
      return;
    }
    ddp::startReplicas(*net, group, inBuckets());
    answerPass(group, net->parameters(), inBuckets());
    answerPassInOrder(group, net->parameters(), reversed, /*averages=*/1, inBuckets(), [&] { firstIsThere.open(); });
  });
}

// A pass that fails, or in which rank 0 has no batch, shows no order.
TEST(RebuiltBuckets, WaitForAPassThatGoesWellWithABatchOnRankZero) {
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    const int rank = worker.self().rank;
    const std::vector<size_t> order = {3, 1, 4, 0, 5, 2, 6};
    Chain net(0), alone(0);
    DistributedDataParallel<Chain> ddp(net, ProcessGroup::make(worker, job.names()), inBuckets());
    const at::Tensor input = inputOf(rank, 0).requires_grad_();
    EXPECT_THROW(net->loss(rank == 1 ? Broken::apply(input) : input, order).backward(), std::exception);
    EXPECT_EQ(ddp.bucketOrder(), namesAsTheyArrive({}));
    net->zero_grad();
    rank == 0 ? ddp.skipPass() : net->loss(input, order).backward();
    EXPECT_EQ(ddp.bucketOrder(), namesAsTheyArrive({}));
    for (int step = 1; step < 4; ++step) {
      net->zero_grad();
      alone->zero_grad();
      net->loss(inputOf(rank, step), order).backward();
      EXPECT_EQ(ddp.bucketOrder(), namesAsTheyArrive(order));
      alone->loss(at::cat({inputOf(0, step), inputOf(1, step)}), order).backward();
      for (const auto& entry : alone->named_parameters())
        EXPECT_TRUE(close(net->named_parameters()[entry.key()].grad(), entry.value().grad())) << entry.key();
    }
  });
}

// The order of a checkpoint: from the first pass on there is nothing to learn, and the bits are those of the run that
// was saved.
TEST(BucketOrder, GivenToAnotherRunGivesItsBits) {
  TensorJob job(ranks(3));
  const std::vector<size_t> order = {2, 6, 0, 1, 5, 3, 4};
  job.onAll([&](Worker& worker) {
    const int rank = worker.self().rank;
    ProcessGroup group = ProcessGroup::make(worker, job.names());
    Chain net(0), resumed(0);
    for (Chain& one : {std::ref(net), std::ref(resumed)}) one->to(at::kFloat);
    auto pass = [&](Chain& one, int step) { one->loss(inputOf(rank, step).to(at::kFloat), order).backward(); };
    DistributedDataParallel<Chain> ddp(net, group, inBuckets());
    pass(net, 0);
    net->zero_grad();
    DdpOptions options = inBuckets();
    options.bucketOrder = ddp.bucketOrder();
    DistributedDataParallel<Chain> another(resumed, group, options);
    for (int step = 1; step < 3; ++step) {
      net->zero_grad();
      resumed->zero_grad();
      pass(net, step);
      pass(resumed, step);
      EXPECT_EQ(another.bucketOrder(), ddp.bucketOrder());
      for (size_t i = 0; i < kLayers; ++i) EXPECT_TRUE(at::equal(net->layers[i].grad(), resumed->layers[i].grad()));
    }
  });
}

TEST(BucketOrder, HasEachTrainedParameterOnce) {
  TensorJob job(ranks(1));
  ProcessGroup group = ProcessGroup::make(job[0], job.names());
  Net net(0);
  net->bias.set_requires_grad(false);
  auto construct = [&](const std::vector<std::string>& names) {
    DistributedDataParallel<Net> ddp(net, group, {.bucketOrder = names});
    return ddp.bucketOrder();
  };
  const std::vector<std::string> valid = {"skipped", "first", "last"};
  EXPECT_EQ(construct(valid), valid);
  EXPECT_TRUE(contains(messageOf<ArgumentError>([&] { construct({"skipped", "first"}); }), "'last' is not named"));
  for (const std::string wrong : {"bias", "first", "offset"})
    EXPECT_TRUE(contains(messageOf<ArgumentError>([&] { construct({"first", "skipped", "last", wrong}); }),
                         "'" + wrong + "' is no trained parameter, or is named twice"));
}

// The layer that no rank used in the first pass is not sent, wherever rank 0's order has it.
TEST(RebuiltBuckets, LeaveOutWhatIsNeverUsed) {
  TensorJob job(ranks(2));
  const std::vector<size_t> order = {3, 1, 4, 0, 5, 2};
  job.onAll([&](Worker& worker) {
    const int rank = worker.self().rank;
    ProcessGroup group = ProcessGroup::make(worker, job.names());
    DdpOptions options = inBuckets();
    options.unusedParameters = UnusedParameters::kStatic;
    Chain net(0), alone(0);
    DistributedDataParallel<Chain> ddp(net, group, options);
    for (int step = 0; step < 3; ++step) {
      net->zero_grad();
      alone->zero_grad();
      net->loss(inputOf(rank, step), order).backward();
      alone->loss(at::cat({inputOf(0, step), inputOf(1, step)}), order).backward();
      for (const size_t layer : order) EXPECT_TRUE(close(net->layers[layer].grad(), alone->layers[layer].grad()));
      EXPECT_FALSE(net->layers[6].grad().defined());
      EXPECT_EQ(ddp.bucketOrder(), namesAsTheyArrive(order));
    }
  });
}

}  // namespace
}  // namespace treadle::test::bucket_plan_test

// DdpOptions::averageBy: gradients that a summation service averages, with and without the servers of the job.

#include <torch/optim/sgd.h>

#include <algorithm>
#include <array>
#include <functional>
#include <future>
#include <latch>
#include <limits>
#include <memory>
#include <optional>
#include <stdexcept>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "tests/support/expect_error.h"
#include "tests/support/gate.h"
#include "tests/support/job_with_servers.h"
#include "tests/train/ddp/hooks.h"
#include "treadle/core/group/group_service.h"
#include "treadle/train/ddp/bucket_limits.h"

namespace treadle::test::average_by_test {
namespace {

using namespace ddp_test;

constexpr int kSteps = 4;

TEST(AverageBy, AutomaticIsAServiceWhereServersHelpAndNothingElseIsAskedFor) {
  const ddp::AverageConditions helpful{.ranks = 3, .hosts = 3, .servers = 1};
  EXPECT_TRUE(ddp::isByService(AverageBy::kAutomatic, helpful));
  const ddp::AverageConditions severalPerHost{.ranks = 6, .hosts = 3, .servers = 1};
  EXPECT_TRUE(ddp::isByService(AverageBy::kAutomatic, severalPerHost));
  ddp::AverageConditions many = helpful;
  many.parameters = summation::kMostSumsInTeam + 1;
  EXPECT_TRUE(ddp::isByService(AverageBy::kAutomatic, many));
  ddp::AverageConditions none = helpful, together = severalPerHost, forced = helpful, manyInTeams = severalPerHost;
  none.servers = 0;
  together.hosts = 2;
  forced.forcesAlgorithm = true;
  manyInTeams.parameters = many.parameters;
  for (const auto& other :
       {none, together, forced, manyInTeams, ddp::AverageConditions{.ranks = 2, .hosts = 2, .servers = 1}}) {
    EXPECT_FALSE(ddp::isByService(AverageBy::kAutomatic, other));
    EXPECT_TRUE(ddp::isByService(AverageBy::kService, other));
    EXPECT_FALSE(ddp::isByService(AverageBy::kGroup, other));
  }
  EXPECT_FALSE(ddp::isByService(AverageBy::kService, {.ranks = 1}));
}

// Ranks rank0, rank1, ... and servers s0, s1, ...
struct JobWithServers : test::JobWithServers<TensorJob> {
  JobWithServers(int ranks, int servers) : test::JobWithServers<TensorJob>("rank", ranks, servers, AutogradOptions()) {}

  // `f(worker, group)` on each rank, where the group is that of all ranks.
  template <class F>
  void onRanks(F f) {
    onWorkers([&](Worker& worker) { f(worker, groupOn(worker)); });
  }
  ProcessGroup groupOn(Worker& worker) const { return ProcessGroup::make(worker, workerNames()); }
};

DdpOptions byService() {
  DdpOptions options = smallBuckets();
  options.averageBy = AverageBy::kService;
  return options;
}

// The parameters of one process after steps `first` to `end` - 1 on the batches of all ranks.
void trainAlone(Net& net, int ranks, int first, int end) {
  torch::optim::SGD sgd(net->parameters(), 0.1);
  for (int step = first; step < end; ++step) {
    std::vector<at::Tensor> inputs;
    for (int rank = 0; rank < ranks; ++rank) inputs.push_back(inputOf(rank, step));
    sgd.zero_grad();
    net->forward(at::cat(inputs), false).square().mean().backward();
    sgd.step();
  }
}

void train(DistributedDataParallel<Net>& ddp, int rank, int first, int end) {
  torch::optim::SGD sgd(ddp->parameters(), 0.1);
  for (int step = first; step < end; ++step) {
    sgd.zero_grad();
    ddp.forward(inputOf(rank, step), /*skip=*/false).square().mean().backward();
    sgd.step();
  }
}

void expectEqual(const torch::nn::Module& net, const torch::nn::Module& alone) {
  for (const auto& entry : alone.named_parameters())
    EXPECT_TRUE(close(net.named_parameters()[entry.key()], entry.value())) << entry.key();
}

TEST(AverageBy, AServiceTrainsAsOneProcess) {
  for (const auto& [ranks, servers] : {std::pair<int, int>{2, 0}, {2, 1}, {3, 0}, {3, 2}, {2, 3}}) {
    SCOPED_TRACE(std::to_string(ranks) + " ranks and " + std::to_string(servers) + " servers");
    Net alone(0);
    trainAlone(alone, ranks, 0, kSteps);
    JobWithServers job(ranks, servers);
    job.onRanks([&](Worker& worker, const ProcessGroup& group) {
      Net net(0);
      DistributedDataParallel<Net> ddp(net, group, byService());
      train(ddp, worker.self().rank, 0, kSteps);
      expectEqual(*net, *alone);
      ddp.verifyReplicas();
      EXPECT_TRUE(contains(ddp.stats().averagedBy, servers > 0 ? "SummationHook with s0" : "without servers"));
      EXPECT_TRUE(contains(describe(ddp.stats()), "averages by SummationHook"));
    });
  }
}

// As if each rank of the job were on the host that `hostOf` says.
void pretendHosts(Worker& worker, std::function<int(int rank)> hostOf) {
  group::GroupService& groups = static_cast<group::Job&>(worker).groups();
  groups.setCosts(groups.costs(), [hostOf = std::move(hostOf)](int rank) { return std::to_string(hostOf(rank)); });
}

// As if each host had so many workers.
void pretendHosts(Worker& worker, int workersPerHost = 1) {
  pretendHosts(worker, [workersPerHost](int rank) { return rank / workersPerHost; });
}

std::string averagedBy(const ProcessGroup& group, AverageBy averageBy = AverageBy::kAutomatic) {
  Net net(0);
  DdpOptions options = smallBuckets();
  options.averageBy = averageBy;
  return DistributedDataParallel<Net>(net, group, options).stats().averagedBy;
}

TEST(AverageBy, AutomaticBetweenHostsIsAService) {
  const std::string byGroup = AverageHook().description();
  JobWithServers job(3, 1);
  job.onRanks([&](Worker&, const ProcessGroup& onOneHost) { EXPECT_EQ(averagedBy(onOneHost), byGroup); });
  job.onAll([](Worker& worker) { pretendHosts(worker); });
  job.onRanks([&](Worker& worker, const ProcessGroup& group) {
    const int rank = worker.self().rank;
    EXPECT_EQ(averagedBy(group), "SummationHook with s0");
    EXPECT_EQ(averagedBy(group, AverageBy::kGroup), byGroup);
    const auto chosen = group::Algorithm::kExchange;  // and forced on one rank
    EXPECT_EQ(averagedBy(rank == 0 ? group.withAlgorithm(chosen) : group), byGroup);
    if (rank < 2) {
      EXPECT_EQ(averagedBy(ProcessGroup::make(worker, ranks(2))), byGroup);
    }
  });
}

TEST(AverageBy, AutomaticWithSeveralRanksOnEachOfThreeHostsIsAService) {
  JobWithServers job(6, 1);
  job.onAll([](Worker& worker) { pretendHosts(worker, 2); });
  job.onRanks([](Worker& worker, const ProcessGroup& group) {
    EXPECT_EQ(averagedBy(group), "SummationHook with s0");
    if (worker.self().rank < 4) {  // two hosts
      EXPECT_EQ(averagedBy(ProcessGroup::make(worker, ranks(4))), AverageHook().description());
    }
  });
}

// A server beside a rank, or beside another server, shares its host's network.
TEST(AverageBy, AutomaticTakesServersThatHaveAHostOfTheirOwn) {
  const auto averagedByWhere = [](int servers, std::function<int(int rank)> hostOf) {
    JobWithServers job(3, servers);
    job.onAll([&](Worker& worker) { pretendHosts(worker, hostOf); });
    std::string by;
    job.onRanks([&](Worker& worker, const ProcessGroup& group) {
      const std::string here = averagedBy(group);
      if (worker.self().rank == 0) by = here;
      EXPECT_TRUE(contains(averagedBy(group, AverageBy::kService), "s0"));
    });
    return by;
  };
  const auto besideRanks = [](int rank) { return rank % 3; };
  EXPECT_EQ(averagedByWhere(2, besideRanks), AverageHook().description());
  EXPECT_EQ(averagedByWhere(2, [](int rank) { return rank == 3 ? 0 : rank; }), "SummationHook with s1");
  EXPECT_EQ(averagedByWhere(2, [](int rank) { return std::min(rank, 3); }), "SummationHook with s0");
}

TEST(AverageBy, ATeamRefusesMoreParametersThanItHasSums) {
  JobWithServers job(3, 0);
  job.onAll([](Worker& worker) { pretendHosts(worker, 2); });
  job.onRanks([](Worker&, const ProcessGroup& group) {
    Weights weights(Shapes(summation::kMostSumsInTeam + 1, {1}));
    const std::string why =
        messageOf<ArgumentError>([&] { DistributedDataParallel<Weights>(weights, group, byService()); });
    EXPECT_TRUE(contains(why, "8193 trained parameters")) << why;
    EXPECT_TRUE(contains(why, "kGroup")) << why;
  });
}

// All its ranks are on one host, where they exchange gradients in memory.
TEST(AverageBy, AutomaticOnOneHostIsTheGroup) {
  JobWithServers job(2, 1);
  job.onRanks([](Worker& worker, const ProcessGroup& group) {
    Net net(0);
    DistributedDataParallel<Net> ddp(net, group, smallBuckets());
    train(ddp, worker.self().rank, 0, 1);
    EXPECT_EQ(ddp.stats().averagedBy, AverageHook().description());
    EXPECT_EQ(worker.metrics().summation.bytesSent, 0U);
  });
}

TEST(AverageBy, AServiceAveragesAllTypes) {
  const Shapes shapes = {{3, 5}, {0}, {7}};
  JobWithServers job(3, 1);
  job.onRanks([&](Worker& worker, const ProcessGroup& group) {
    for (const at::ScalarType type : {at::kHalf, at::kBFloat16, at::kFloat, at::kDouble, at::kComplexFloat}) {
      Weights weights(shapes, type);
      DistributedDataParallel<Weights> ddp(weights, group, byService());
      const auto gradientsOf = [&](int rank) {
        std::vector<at::Tensor> gradients;
        for (size_t i = 0; i < shapes.size(); ++i)
          gradients.push_back(random(shapes[i], 10 * i + static_cast<uint64_t>(rank)).to(type));
        return gradients;
      };
      const auto averages = averageOf(*weights, gradientsOf(worker.self().rank));
      for (size_t i = 0; i < shapes.size(); ++i) {
        const at::ScalarType exact = at::isComplexType(type) ? at::kComplexDouble : at::kDouble;
        const at::Tensor sum = gradientsOf(0)[i].to(exact) + gradientsOf(1)[i] + gradientsOf(2)[i];
        const double rounding = type == at::kBFloat16 ? 0x1p-7 : type == at::kHalf ? 0x1p-10 : 1e-6;
        EXPECT_TRUE(close(averages[i].to(exact), sum / 3, rounding)) << type;
      }
    }
  });
}

DdpOptions asBFloat16() {
  DdpOptions options = byService();
  options.compression = Compression::bfloat16();
  return options;
}

// About how many bytes this worker sends in some passes with `options`, whose average of `gradients` is `expected`.
uint64_t bytesOfSums(Worker& worker, const ProcessGroup& group, const DdpOptions& options,
                     const std::vector<at::Tensor>& gradients, const at::Tensor& expected, double rounding) {
  Weights weights(Shapes{{1000, 300}});
  DistributedDataParallel<Weights> ddp(weights, group, options);
  averageOf(*weights, {gradients[0].new_full({1000, 300}, std::numeric_limits<float>::infinity())});
  EXPECT_TRUE(weights->all[0].grad().isinf().all().item<bool>());
  constexpr int kPasses = 20;  // the last bytes of the first pass, which this may count, are few beside theirs
  const uint64_t before = worker.metrics().summation.bytesSent;
  at::Tensor average;
  for (int pass = 0; pass < kPasses; ++pass) {
    average = averageOf(*weights, gradients)[0];
    EXPECT_TRUE(close(average, expected, rounding)) << "the infinity has left a trace";
  }
  at::Tensor ofRank0 = average.clone();
  broadcast(group, ofRank0, 0).wait();
  EXPECT_TRUE(at::equal(average, ofRank0));
  return worker.metrics().summation.bytesSent - before;
}

TEST(AverageBy, AServiceMovesHalfOfTheBytesWhereTheyAreCompressed) {
  JobWithServers job(3, 1);
  job.onRanks([&](Worker& worker, const ProcessGroup& group) {
    const auto gradientOf = [](int rank) { return random({1000, 300}, static_cast<uint64_t>(rank)).to(at::kFloat); };
    const at::Tensor expected = (gradientOf(0) + gradientOf(1) + gradientOf(2)) / 3;
    const std::vector<at::Tensor> own = {gradientOf(worker.self().rank)};
    const auto whole = static_cast<double>(bytesOfSums(worker, group, byService(), own, expected, 1e-6));
    const auto half = static_cast<double>(bytesOfSums(worker, group, asBFloat16(), own, expected, 0x1p-6));
    EXPECT_NEAR(half / whole, 0.5, 0.05);
    Net net(0);
    EXPECT_EQ(DistributedDataParallel<Net>(net, group, asBFloat16()).stats().averagedBy,
              "SummationHook with s0, as bfloat16");
  });
}

// With t* of 12 / (9 + 0.5) of shares.h; equal shares would have it send 1.2 times the bytes.
TEST(AverageBy, AServerWithLessBandwidthSumsLess) {
  JobWithServers job(3, 1);
  job.onRanks([](Worker&, const ProcessGroup& group) {
    DdpOptions options = byService();
    options.bandwidths = {{"s0", 0.5}};
    Weights weights(Shapes{{1000, 300}});
    const DistributedDataParallel<Weights> ddp(weights, group, options);
    averageOf(*weights, {at::ones({1000, 300})});
  });
  const auto sent = static_cast<double>(job.server(0).metrics().summation.bytesSent);
  EXPECT_NEAR(sent / (1000 * 300 * sizeof(float)), 0.5 * 12 / 9.5, 0.02);
}

// Whatever the network of the group is like: all of them fit in the first bucket of a group here.
TEST(AverageBy, AServiceBeginsWithEachParameter) {
  const std::vector<int64_t> shape = {200, 200};
  JobWithServers job(2, 1);
  job.onRanks([&](Worker&, const ProcessGroup& group) {
    ASSERT_GT(ddp::limitsFor(group, {}).bytesOf(/*isFirst=*/true), 2 * 200 * 200 * sizeof(float));
    EXPECT_EQ(ddp::limitsFor(AverageHook(), group, {}).bytes, ddp::limitsFor(group, {}).bytes);
    Weights net(Shapes(3, shape));
    const DistributedDataParallel<Weights> ddp(net, group, {.averageBy = AverageBy::kService});
    net->loss(std::vector<at::Tensor>(3, at::ones(shape))).backward();
    const DdpStats stats = ddp.stats();
    ASSERT_EQ(stats.recent.size(), 1U);
    EXPECT_EQ(stats.recent[0].buckets.size(), 3U);
    for (const DdpBucketTimes& bucket : stats.recent[0].buckets) EXPECT_EQ(bucket.bytes, 200 * 200 * sizeof(float));
  });
}

TEST(AverageBy, AServiceTakesTheBucketsOfTheProgram) {
  const Shapes shapes(4, {100, 100});
  JobWithServers job(2, 1);
  job.onRanks([&](Worker&, const ProcessGroup& group) {
    Weights net(shapes);
    const DdpOptions options{.buckets = {.bytes = 80'000}, .averageBy = AverageBy::kService};
    const DistributedDataParallel<Weights> ddp(net, group, options);
    net->loss(std::vector<at::Tensor>(4, at::ones({100, 100}))).backward();
    const DdpStats stats = ddp.stats();
    ASSERT_EQ(stats.recent.size(), 1U);
    ASSERT_EQ(stats.recent[0].buckets.size(), 2U);
    EXPECT_EQ(stats.recent[0].buckets[0].bytes, 80'000U);
  });
}

// The last sums of the others must not fail because a rank has gone.
TEST(AverageBy, ARankMayGoBeforeTheOthersHaveTheirAverages) {
  JobWithServers job(3, 1);
  job.onRanks([&](Worker& worker, const ProcessGroup& group) {
    for (int again = 0; again < 20; ++again) {
      Net net(0);
      DistributedDataParallel<Net> ddp(net, group, byService());
      train(ddp, worker.self().rank, 0, 1);
    }
  });
}

// A rank throws when some of its buckets have gone.
TEST(AverageBy, AFailedPassWithAServiceLeavesNothingToTheNext) {
  JobWithServers job(3, 1);
  Net alone(0);
  alone->forward(at::cat({inputOf(0, 1), inputOf(1, 1), inputOf(2, 1)}), false).square().mean().backward();
  job.onRanks([&](Worker& worker, const ProcessGroup& group) {
    const int rank = worker.self().rank;
    Net net(0);
    DistributedDataParallel<Net> ddp(net, group, byService());
    bool isBad = rank == 0;
    net->bias.register_hook([&](const at::Tensor&) {
      if (std::exchange(isBad, false)) throw std::runtime_error("a bad batch");
    });
    EXPECT_ANY_THROW(ddp.forward(inputOf(rank, 0), false).square().mean().backward());
    net->zero_grad();
    ddp.forward(inputOf(rank, 1), false).square().mean().backward();
    for (const auto& entry : alone->named_parameters())
      EXPECT_TRUE(close(net->named_parameters()[entry.key()].grad(), entry.value().grad())) << entry.key();
  });
}

TEST(AverageBy, AServiceGoesOnWithoutALostServerAndRebindMakesOneOfTheOthers) {
  Net alone(0);
  trainAlone(alone, 2, 0, kSteps);
  JobWithServers job(2, 2);
  std::array<std::unique_ptr<DistributedDataParallel<Net>>, 2> ddps;
  job.onRanks([&](Worker& worker, const ProcessGroup& group) {
    const auto rank = static_cast<size_t>(worker.self().rank);
    ddps[rank] = std::make_unique<DistributedDataParallel<Net>>(Net(0), group, byService());
    train(*ddps[rank], worker.self().rank, 0, kSteps / 2);
  });
  job.killServer(0);
  job.onRanks([&](Worker& worker, const ProcessGroup&) {
    const int rank = worker.self().rank;
    const auto ddp = std::move(ddps[static_cast<size_t>(rank)]);
    constexpr int kRebound = 3 * kSteps / 4;
    train(*ddp, rank, kSteps / 2, kRebound);
    EXPECT_EQ(ddp->state().condition, DdpCondition::kUsable);
    EXPECT_TRUE(ddp->rebind(job.groupOn(worker)));
    EXPECT_EQ(ddp->stats().averagedBy, "SummationHook with s1");
    train(*ddp, rank, kRebound, kSteps);
    expectEqual(**ddp, *alone);
  });
}

// Ranks train, and the first server is killed so long after they have begun to construct a DistributedDataParallel, or
// never. Each rank is on a host of its own, and all servers on another one. Returns how long that takes.
Duration trainWithoutFirstServer(int ranks, int servers, AverageBy averageBy, std::optional<Duration> killAfter) {
  Net alone(0);
  trainAlone(alone, ranks, 0, kSteps);
  JobWithServers job(ranks, servers);
  job.onAll([ranks](Worker& worker) { pretendHosts(worker, [ranks](int rank) { return std::min(rank, ranks); }); });
  std::vector<ProcessGroup> groups(static_cast<size_t>(ranks));
  job.onRanks(
      [&](Worker& worker, const ProcessGroup& group) { groups[static_cast<size_t>(worker.self().rank)] = group; });
  std::latch begin(ranks + 1);
  const auto onRank = [&](int rank) {
    SCOPED_TRACE(killAfter ? "killed after " + toText(*killAfter) : "not killed");
    begin.arrive_and_wait();
    const TimePoint before = Clock::now();
    Net net(0);
    DdpOptions options = smallBuckets();
    options.averageBy = averageBy;
    DistributedDataParallel<Net> ddp(net, groups[static_cast<size_t>(rank)], options);
    const Duration took = Clock::now() - before;
    train(ddp, rank, 0, kSteps);
    expectEqual(*net, *alone);
    return took;
  };
  std::vector<std::future<Duration>> took;
  for (int rank = 0; rank < ranks; ++rank) took.push_back(std::async(std::launch::async, onRank, rank));
  begin.arrive_and_wait();
  if (killAfter) {
    std::this_thread::sleep_for(*killAfter);
    job.killServer(0);
  }
  Duration longest{};
  for (std::future<Duration>& one : took) longest = std::max(longest, one.get());
  return longest;
}

// Automatically one of two servers on a host takes part, and the other one in its place.
TEST(AverageBy, AServerMayBeLostWhileItsServiceIsMade) {
  for (const auto& [ranks, servers, averageBy] : {std::tuple<int, int, AverageBy>{2, 1, AverageBy::kService},
                                                  {2, 2, AverageBy::kService},
                                                  {3, 2, AverageBy::kAutomatic}}) {
    const Duration whole = trainWithoutFirstServer(ranks, servers, averageBy, {});
    for (int moment = 0; moment < 20; ++moment) trainWithoutFirstServer(ranks, servers, averageBy, whole * moment / 20);
  }
}

// Sums that the rank never begins end at once, with the reason.
TEST(AverageBy, AGroupThatFailsEndsTheSumsOfItsService) {
  JobWithServers job(2, 1);
  job.onRanks([&](Worker& worker, const ProcessGroup& group) {
    const int rank = worker.self().rank;
    Net net(0);
    DistributedDataParallel<Net> ddp(net, group.withTimeout(kNoTimeout), byService());
    torch::optim::SGD sgd(net->parameters(), 0.1);
    auto join = ddp.join([&] { sgd.step(); });
    train(ddp, rank, 0, 1);
    net->zero_grad();
    worker.barrier();  // all have their averages
    if (rank == 0) {
      const std::string why = messageOf<StateError>([&] { train(ddp, rank, 1, 2); });
      EXPECT_TRUE(contains(why, "rank1")) << why;
      EXPECT_TRUE(contains(why, "has left a guard of join()")) << why;
    } else {
      const auto left = std::move(join);
    }
  });
}

// Ranks that have begun other modules of the pass would sum gradients of the next pass with those of this one.
TEST(AverageBy, AGroupOfTwoModulesInOnePassEndsWithTheirServices) {
  JobWithServers job(2, 1);
  job.onRanks([&](Worker& worker, const ProcessGroup& group) {
    const int rank = worker.self().rank;
    Net a(0), b(1);
    DistributedDataParallel<Net> ofA(a, group, byService()), ofB(b, group, byService());
    worker.barrier();  // both services are there on all ranks
    const auto lossOf = [&](DistributedDataParallel<Net>& ddp) {
      return ddp.forward(inputOf(rank, 0), /*skip=*/false).square().mean();
    };
    const at::Tensor loss = rank == 0 ? lossOf(ofA) + lossOf(ofB) : lossOf(ofB) + lossOf(ofA);
    EXPECT_ANY_THROW(loss.backward());
    EXPECT_TRUE(eventually([&] { return ofA.state().condition == DdpCondition::kGroupLost; }));
    EXPECT_TRUE(contains(ofA.state().reason, "make a group for each of the modules"));
  });
  EXPECT_TRUE(AverageHook().isByGroup()) << "a group that averages is of use after such a pass";
}

TEST(AverageBy, AWorkerThatLeavesEndsItsGroupWithThatReason) {
  JobWithServers job(2, 1);
  job.onAll([&](Worker& worker) {
    if (worker.self().rank == 2) return worker.shutdown();
    Net net(0);
    DistributedDataParallel<Net> ddp(net, job.groupOn(worker), byService());
    train(ddp, worker.self().rank, 0, 1);
    worker.shutdown();
    EXPECT_EQ(ddp.state().reason, "this worker has left its job");
  });
}

TEST(AverageBy, AServiceServesOptimizersWithinThePassAndPassesWithoutABatch) {
  Net alone(0);
  trainAlone(alone, 2, 0, kSteps);
  JobWithServers job(2, 1);
  job.onRanks([&](Worker& worker, const ProcessGroup& group) {
    Net net(0);
    DdpOptions options = byService();
    options.optimizerInBackward = std::make_shared<torch::optim::SGD>(net->parameters(), 0.1);
    DistributedDataParallel<Net> ddp(net, group, options);
    for (int step = 0; step < kSteps; ++step)
      ddp.forward(inputOf(worker.self().rank, step), /*skip=*/false).square().mean().backward();
    expectEqual(*net, *alone);
    // Both batches of a step on rank 0: one under noSync.
    Net again(0);
    DistributedDataParallel<Net> uneven(again, group, byService());
    torch::optim::SGD sgd(again->parameters(), 0.1);
    for (int step = 0; step < kSteps; ++step) {
      sgd.zero_grad();
      if (worker.self().rank == 1) {
        uneven.skipPass();
      } else {
        {
          const auto guard = uneven.noSync();
          uneven.forward(inputOf(1, step), false).square().mean().backward();
        }
        uneven.forward(inputOf(0, step), false).square().mean().backward();
      }
      sgd.step();
    }
    expectEqual(*again, *alone);
  });
}

TEST(AverageBy, AServiceAndAHookExcludeEachOther) {
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    Net net(0);
    DdpOptions options = byService();
    options.hook = std::make_shared<CastHook>(at::kHalf);
    const std::string why = messageOf<ArgumentError>(
        [&] { DistributedDataParallel<Net> ddp(net, ProcessGroup::make(worker, job.names()), options); });
    EXPECT_TRUE(contains(why, "with AverageBy::kService there is no hook"));
  });
}

std::string refusalOf(const DdpOptions& options) {
  TensorJob job(ranks(2));
  std::string refusal;
  job.onAll([&](Worker& worker) {
    const auto make = [&] { DistributedDataParallel<Net>(Net(0), ProcessGroup::make(worker, job.names()), options); };
    const std::string why = messageOf<ArgumentError>(make);
    if (worker.self().rank == 0) refusal = why;
  });
  return refusal;
}

TEST(AverageBy, CompressionIsRefusedWhereItCannotBe) {
  DdpOptions options = smallBuckets();
  options.compression = Compression::float16();
  for (const AverageBy other : {AverageBy::kAutomatic, AverageBy::kGroup}) {
    options.averageBy = other;
    EXPECT_TRUE(contains(refusalOf(options), "DdpOptions::compression is that of a summation service"));
  }
  for (const Compression& holdsBack : {Compression::oneBit(), Compression::topK(0.1)}) {
    options = byService();
    options.compression = holdsBack;
    EXPECT_TRUE(contains(refusalOf(options), "would hold back gradients of passes that fail"));
  }
}

TEST(AverageBy, BandwidthsAreThoseOfMachinesOfTheJob) {
  DdpOptions options = byService();
  options.bandwidths = {{"nobody", 1}};
  EXPECT_TRUE(contains(refusalOf(options), "'nobody', which is neither a rank of the group nor a server of the job"));
  options.bandwidths = {{"rank0", 0}};
  EXPECT_TRUE(contains(refusalOf(options), "rank0: a bandwidth of a summation service is not from 1e-100 to 1e100"));
  options.bandwidths = {{"rank0", 1}};
  options.averageBy = AverageBy::kGroup;
  EXPECT_TRUE(contains(refusalOf(options), "DdpOptions::bandwidths are those of a summation service"));
}

TEST(AverageBy, ADifferenceOfBandwidthsIsNamed) {
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    DdpOptions options = byService();
    options.bandwidths = {{"rank1", worker.self().rank == 0 ? 2 : 3}};
    const std::string why = messageOf<ArgumentError>(
        [&] { DistributedDataParallel<Net>(Net(0), ProcessGroup::make(worker, job.names()), options); });
    EXPECT_TRUE(contains(why, "of 'rank1'")) << why;
  });
}

TEST(AverageBy, ADifferenceOfCompressionIsNamed) {
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    const DdpOptions options = worker.self().rank == 0 ? byService() : asBFloat16();
    const std::string why = messageOf<ArgumentError>(
        [&] { DistributedDataParallel<Net>(Net(0), ProcessGroup::make(worker, job.names()), options); });
    EXPECT_TRUE(contains(why, "DdpOptions::compression bfloat16")) << why;
  });
}

TEST(AverageBy, ADifferenceIsNamed) {
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    Net net(0);
    const DdpOptions options = worker.self().rank == 0 ? byService() : smallBuckets();
    const std::string why = messageOf<ArgumentError>(
        [&] { DistributedDataParallel<Net> ddp(net, ProcessGroup::make(worker, job.names()), options); });
    EXPECT_TRUE(contains(why, "DdpOptions::averageBy kService"));
  });
}

}  // namespace
}  // namespace treadle::test::average_by_test

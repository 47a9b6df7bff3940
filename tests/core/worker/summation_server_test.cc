// Summation servers: workers of a job that take part in its services by themselves.

#include <algorithm>
#include <array>
#include <future>
#include <latch>
#include <numeric>
#include <optional>
#include <thread>

#include "tests/support/descriptors.h"
#include "tests/support/gate.h"
#include "tests/support/job_with_servers.h"
#include "tests/support/local_job.h"
#include "treadle/core/summation/service.h"
#include "treadle/core/summation/services.h"

namespace treadle::summation_server_test {
namespace {

constexpr Duration kPatience = std::chrono::seconds(60);
constexpr size_t kElements = 2'000'000;  // several parts
const std::vector<SummationTensor> kTensors = {{"weight", group::DataType::kFloat32, kElements}};

// Workers w0, w1, ... and servers s0, s1, ...
struct JobWithServers : test::JobWithServers<test::WorkerJob> {
  JobWithServers(int workers, int servers) : test::JobWithServers<test::WorkerJob>("w", workers, servers) {}
};

std::vector<std::string> namesOf(const std::vector<WorkerInfo>& workers) {
  std::vector<std::string> names;
  for (const WorkerInfo& worker : workers) names.push_back(worker.name);
  return names;
}

// Each worker gives its rank plus the number of the sum.
void sumAndCheck(SummationService& service, const Worker& worker, size_t workers) {
  for (size_t round = 0; round < 3; ++round) {
    std::vector<float> data(kElements, static_cast<float>(static_cast<size_t>(worker.self().rank) + round));
    service.sum("weight", std::span(data)).wait(kPatience);
    const auto sum = static_cast<float>(workers * (workers - 1) / 2 + workers * round);
    EXPECT_EQ(std::vector<float>(kElements, sum), data);
  }
}

TEST(SummationServer, TakesPartInTheServicesOfItsJob) {
  for (const auto& [workers, servers] : {std::pair<int, int>{2, 1}, {3, 2}, {2, 3}}) {
    SCOPED_TRACE(std::to_string(workers) + " workers and " + std::to_string(servers) + " servers");
    JobWithServers job(workers, servers);
    for (int again = 0; again < 2; ++again) {
      job.onWorkers([&, workers = static_cast<size_t>(workers)](Worker& worker) {
        SummationService service = SummationService::make(worker, {}, kTensors);
        EXPECT_FALSE(service.isServer());
        sumAndCheck(service, worker, workers);
        worker.barrier();
        EXPECT_TRUE(test::eventually([&] {
          const SummationCounters counters = job.server(0).metrics().summation;
          return counters.services == 1 && counters.clients == workers;
        }));
        worker.barrier();
        service.leave().wait(kPatience);
      });
    }
    for (size_t number = 0; number < static_cast<size_t>(servers); ++number) {
      EXPECT_TRUE(test::eventually([&] { return job.server(number).metrics().summation.services == 0; }));
      const SummationCounters counters = job.server(number).metrics().summation;
      EXPECT_EQ(0U, counters.sums % 6) << "three sums of each part, in two services";
      EXPECT_GT(counters.sums, 0U);
      EXPECT_GT(counters.bytesReceived, 0U);
      EXPECT_GT(counters.bytesSent, 0U);
    }
  }
}

// A worker that is in several services counts once.
TEST(SummationServer, CountsItsWorkers) {
  JobWithServers job(3, 1);
  job.onWorkers([&](Worker& worker) {
    SummationOptions options{.workers = {"w0", "w1"}, .servers = {"s0"}};
    if (worker.self().name == "w2") options.workers = {"w2"};
    SummationService one = SummationService::make(worker, options, kTensors);
    options.name = "another";
    SummationService another = SummationService::make(worker, options, kTensors);
    EXPECT_TRUE(test::eventually([&] {
      const SummationCounters counters = job.server(0).metrics().summation;
      return counters.services == 4 && counters.clients == 3;
    }));
    worker.barrier();
  });
}

// The last one fails on all workers, and harms no other. Those that have ended do not count.
TEST(SummationServer, LimitsTheServicesOfAWorker) {
  if (!test::mayHaveDescriptors(5'000)) GTEST_SKIP() << "256 services of three machines have 3,072";
  JobWithServers job(2, 1);
  const std::vector<SummationTensor> tensors = {{"count", group::DataType::kInt64, 1}};
  std::array<std::vector<SummationService>, 2> services;
  const auto next = [&](Worker& worker) {
    std::vector<SummationService>& own = services.at(static_cast<size_t>(worker.self().rank));
    own.push_back(SummationService::make(worker, {.name = std::to_string(own.size())}, tensors));
  };
  job.onWorkers([&](Worker& worker) {
    for (size_t number = 0; number < summation::Services::kMostServices; ++number) next(worker);
    for (int again = 0; again < 2; ++again) {
      const std::string why = test::messageOf<ResourceError>([&] { next(worker); });
      EXPECT_TRUE(test::contains(why, "w0 has 256 summation services with servers of the job")) << why;
    }
    std::vector<SummationService>& own = services.at(static_cast<size_t>(worker.self().rank));
    own.front().leave().wait(kPatience);
    next(worker);
    for (SummationService& service : own) {
      if (service.ended().ready()) continue;
      std::vector<int64_t> one = {1};
      service.sum("count", std::span(one)).wait(kPatience);
      EXPECT_EQ(2, one.front());
      service.leave();
    }
    for (SummationService& service : own) service.ended().wait(kPatience);
  });
}

// What the servers have received is all that the workers have sent, and the other way round, as two workers who sum
// nothing themselves send each other only that they leave.
TEST(SummationServer, CountsBytesAsTheOtherEndDoes) {
  JobWithServers job(2, 2);
  job.onWorkers([&](Worker& worker) {
    SummationService service = SummationService::make(worker, {}, kTensors);
    sumAndCheck(service, worker, 2);
    service.leave().wait(kPatience);
  });
  SummationCounters workers, servers;
  for (size_t rank = 0; rank < 4; ++rank) {
    ASSERT_TRUE(test::eventually([&] { return job[rank].metrics().summation.services == 0; }));
    const SummationCounters one = job[rank].metrics().summation;
    SummationCounters& sum = rank < 2 ? workers : servers;
    sum.bytesReceived += one.bytesReceived;
    sum.bytesSent += one.bytesSent;
  }
  EXPECT_EQ(workers.bytesReceived + servers.bytesReceived, workers.bytesSent + servers.bytesSent);
  EXPECT_GE(servers.bytesReceived, 2 * 3 * kElements * sizeof(float));
}

TEST(SummationServer, HasNoPartInWhatWorkersDo) {
  JobWithServers job(2, 1);
  for (size_t rank = 0; rank < job.size(); ++rank) {
    EXPECT_EQ((std::vector<std::string>{"w0", "w1"}), namesOf(job[rank].peers()));
    EXPECT_EQ((std::vector<std::string>{"s0"}), namesOf(job[rank].servers()));
  }
  job.onWorkers([](Worker& worker) {
    worker.barrier();
    EXPECT_EQ((std::map<std::string, int>{{"w0", 0}, {"w1", 1}}), worker.allGather(worker.self().rank));
    const std::string group = test::messageOf<ArgumentError>([&] { ProcessGroup::make(worker, {"w0", "w1", "s0"}); });
    const std::string service = test::messageOf<ArgumentError>(
        [&] { SummationService::make(worker, {.workers = {"w0", "w1", "s0"}}, kTensors); });
    for (const std::string& why : {group, service})
      EXPECT_TRUE(test::contains(why, "'s0' has the rank of a summation server and takes part in no group")) << why;
  });
  const std::string why = test::messageOf<StateError>([&] { job.server(0).barrier(); });
  EXPECT_TRUE(test::contains(why, "barrier() was called by s0, which has the rank of a summation server")) << why;
  EXPECT_TRUE(test::contains(test::messageOf<StateError>([&] { job.server(0).allGather(1); }), "allGather()"));
  EXPECT_TRUE(test::contains(test::messageOf<StateError>([&] { SummationService::make(job.server(0), {}, kTensors); }),
                             "s0 has the rank of a summation server"));
}

// Each service counts, whether it came about or not: the workers' next one is the servers' next one.
TEST(SummationServer, OutlivesServicesThatFail) {
  JobWithServers job(2, 1);
  const auto failure = [](Worker& worker, const SummationOptions& options,
                          const std::vector<SummationTensor>& tensors) {
    return test::messageOf<ArgumentError>([&] { SummationService::make(worker, options, tensors); });
  };
  job.onWorkers([&](Worker& worker) {
    const bool isFirst = worker.self().rank == 0;
    const std::string differs = failure(worker, {}, {{"weight", group::DataType::kFloat32, isFirst ? 3U : 4U}});
    EXPECT_TRUE(test::contains(differs, "tensor 0 is declared by w1"));
    const std::string none = failure(worker, {.bandwidths = {1, 2}}, kTensors);
    EXPECT_TRUE(test::contains(none, "has 2 bandwidths"));
    const std::string never = failure(worker, {.timeout = Duration::zero()}, kTensors);
    EXPECT_TRUE(test::contains(never, "timeout"));
    const std::string unnamed = failure(worker, {.name = std::string(65, 'n')}, kTensors);
    EXPECT_TRUE(test::contains(unnamed, "has 65 bytes"));
    SummationService dropped = SummationService::make(worker, {}, kTensors);
    worker.barrier();
    dropped = {};
    worker.barrier();
    SummationService service = SummationService::make(worker, {}, kTensors);
    sumAndCheck(service, worker, 2);
    service.leave().wait(kPatience);
  });
}

TEST(SummationServer, TakesPartInServicesOfSomeWorkers) {
  JobWithServers job(3, 2);
  job.onWorkers([&](Worker& worker) {
    if (worker.self().rank == 2) return;
    SummationService service =
        SummationService::make(worker, {.workers = {"w0", "w1"}, .servers = {"s1"}, .name = "of two"}, kTensors);
    sumAndCheck(service, worker, 2);
    service.leave().wait(kPatience);
  });
  EXPECT_EQ(0U, job.server(0).metrics().summation.sums);
  EXPECT_GT(job.server(1).metrics().summation.sums, 0U);
}

// Sums go on with the machines that are left, and so do barriers, later services and the shutdown.
TEST(SummationServer, IsMissedByNobodyWhenItIsLost) {
  for (const auto& [killed, compression] :
       {std::pair<size_t, Compression>{1, {}}, {2, {}}, {1, Compression::oneBit()}, {2, Compression::oneBit()}}) {
    JobWithServers job(2, 2);
    std::vector<SummationService> services(2);
    job.onWorkers([&](Worker& worker) {
      SummationService& service = services[static_cast<size_t>(worker.self().rank)];
      service = SummationService::make(worker, {.compression = compression}, kTensors);
      sumAndCheck(service, worker, 2);
    });
    for (size_t server = 0; server < killed; ++server) job.killServer(server);
    job.onWorkers([&](Worker& worker) {
      SummationService& service = services[static_cast<size_t>(worker.self().rank)];
      sumAndCheck(service, worker, 2);
      worker.barrier();
      service.leave().wait(kPatience);
      SummationOptions others{.workers = job.workerNames()};
      if (killed == 1) others.servers = {"s1"};
      SummationService next = SummationService::make(worker, others, kTensors);
      sumAndCheck(next, worker, 2);
      next.leave().wait(kPatience);
    });
    job.shutdown();
  }
}

// Two workers make a service, and its server is killed so long after they have begun, or never. Returns how long that
// takes.
Duration makeWithoutServer(std::optional<Duration> killAfter) {
  JobWithServers job(2, 1);
  std::array<SummationService, 2> services;
  std::latch begin(3);
  const auto onWorker = [&](size_t rank) {
    begin.arrive_and_wait();
    const TimePoint before = Clock::now();
    try {
      services[rank] = SummationService::make(job[rank], {}, kTensors);
    } catch (const PeerLostError& error) {
      EXPECT_EQ("s0", error.worker());
    }
    return Clock::now() - before;
  };
  auto one = std::async(std::launch::async, onWorker, size_t{0});
  auto other = std::async(std::launch::async, onWorker, size_t{1});
  begin.arrive_and_wait();
  if (killAfter) {
    std::this_thread::sleep_for(*killAfter);
    job.killServer(0);
  }
  const Duration took = std::max(one.get(), other.get());
  EXPECT_EQ(services[0].valid(), services[1].valid()) << (killAfter ? toText(*killAfter) : "not killed");
  if (!services[0].valid() || !services[1].valid()) return took;
  job.onWorkers([&](Worker& worker) {
    SummationService& service = services[static_cast<size_t>(worker.self().rank)];
    sumAndCheck(service, worker, 2);
    service.leave().wait(kPatience);
  });
  return took;
}

TEST(SummationServer, IsLostToAllWhoMakeItsServiceOrToNone) {
  constexpr int kMoments = 40;
  const Duration whole = makeWithoutServer({});
  for (int moment = 0; moment <= kMoments; ++moment) makeWithoutServer(whole * moment / kMoments);
}

// On both ways of the data: to the server, and back.
TEST(SummationServer, MovesFewerBytesWhereTensorsAreCompressed) {
  const auto bytesOf = [](const Compression& compression) {
    JobWithServers job(2, 1);
    job.onWorkers([&](Worker& worker) {
      SummationService service = SummationService::make(worker, {.compression = compression}, kTensors);
      sumAndCheck(service, worker, 2);
      service.leave().wait(kPatience);
    });
    const SummationCounters counters = job.server(0).metrics().summation;
    EXPECT_NEAR(1, static_cast<double>(counters.bytesSent) / static_cast<double>(counters.bytesReceived), 0.03);
    return static_cast<double>(counters.bytesReceived);
  };
  const double all = bytesOf({});
  for (const auto& [compression, part] : {std::pair<Compression, double>{Compression::float16(), 2},
                                          {Compression::bfloat16(), 2},
                                          {Compression::oneBit(), 30}})
    EXPECT_NEAR(1, all / bytesOf(compression) / part, 0.03) << part;
}

// The workers list nobody but themselves.
TEST(SummationServer, IsNoPartOfServicesThatListOthers) {
  JobWithServers job(2, 1);
  job.onWorkers([&](Worker& worker) {
    SummationService service = SummationService::make(worker, {.workers = {"w0", "w1"}}, kTensors);
    sumAndCheck(service, worker, 2);
    service.leave().wait(kPatience);
  });
  EXPECT_EQ(0U, job.server(0).metrics().summation.bytesReceived);
}

TEST(SummationServer, IsNotToBlameForItsInvitation) {
  JobWithServers job(2, 1);
  const std::string late = test::messageOf<TimeoutError>(
      [&] { SummationService::make(job[1], {.timeout = std::chrono::milliseconds(50)}, kTensors); });
  EXPECT_TRUE(test::contains(late, "servers of the job take part when w0 makes the service"));
}

// A worker that sends such bytes is lost to the receiver.
TEST(SummationServer, RefusesInvitationsThatAreNone) {
  using summation::Invitation;
  const std::vector<std::byte> good = encode(Invitation{{"w0", "w1"}, {"w2"}, "", kPatience});
  struct Case {
    const char* what;
    int to;
    std::vector<std::byte> message;
    bool isTaken;
  };
  for (const Case& one :
       {Case{"an invitation", 2, good, true},
        {"one to a worker that is no server", 1, good, false},
        {"one from another worker", 2, encode(Invitation{{"w1", "w0"}, {"w2"}, "", kPatience}), false},
        {"one to another server", 2, encode(Invitation{{"w0"}, {"w1"}, "", kPatience}), false},
        {"one with a stranger", 2, encode(Invitation{{"w0", "\x1b[2J"}, {"w2"}, "", kPatience}), false},
        {"one without a worker", 2, encode(Invitation{{}, {"w2"}, "", kPatience}), false},
        {"one without a server", 2, encode(Invitation{{"w0"}, {}, "", kPatience}), false},
        {"one without a time limit", 2, encode(Invitation{{"w0"}, {"w2"}, "", Duration::zero()}), false},
        {"half of one", 2, {good.begin(), good.begin() + 20}, false},
        {"another kind", 2, {std::byte{3}}, false}}) {
    SCOPED_TRACE(one.what);
    std::vector<std::unique_ptr<summation::Services>> services;
    std::atomic<int> invitations = 0;
    test::LocalJobOptions options;
    options.membership.servers = 1;
    test::LocalJob job(
        3,
        [&](test::LocalWorker& worker) {
          services.push_back(std::make_unique<summation::Services>(
              *worker.membership, worker.executor.get(),
              [](int, uint64_t, TimePoint) { return Result<io::Stream>(notFound("nobody dials here")); }));
          if (worker.membership->self().rank == 2)
            services.back()->setServer([&](const Invitation&, const std::function<void()>&) { ++invitations; });
          worker.membership->setHandler(link::Subject::kSummation, *services.back());
        },
        options);
    throwIfError(job.worker(0).membership->send(one.to, link::Subject::kSummation, one.message, {},
                                                link::SendMode::kUrgent, kNever));
    if (one.isTaken) {
      EXPECT_TRUE(test::eventually([&] { return invitations == 1; }));
    } else {
      EXPECT_TRUE(test::eventually([&] { return job.worker(one.to).membership->lossOf(0).has_value(); }));
      EXPECT_EQ(0, invitations);
    }
  }
}

// The most that one worker may have; the next one costs it its connection. What has ended counts no longer.
TEST(SummationServer, BoundsInvitations) {
  using summation::Services;
  std::vector<std::unique_ptr<Services>> services;
  Mutex mutex;
  std::vector<std::function<void()>> served;
  const auto count = [&] {
    MutexLock lock(mutex);
    return served.size();
  };
  test::LocalJobOptions options;
  options.membership.servers = 1;
  test::LocalJob job(
      2,
      [&](test::LocalWorker& worker) {
        services.push_back(std::make_unique<Services>(
            *worker.membership, worker.executor.get(),
            [](int, uint64_t, TimePoint) { return Result<io::Stream>(notFound("nobody dials here")); }));
        if (worker.membership->self().rank == 1) {
          services.back()->setServer([&](const summation::Invitation&, std::function<void()> ended) {
            MutexLock lock(mutex);
            served.push_back(std::move(ended));
          });
        }
        worker.membership->setHandler(link::Subject::kSummation, *services.back());
      },
      options);
  const auto invite = [&] { services[0]->invite({{"w0"}, {"w1"}, "", kPatience}); };
  for (size_t i = 0; i < Services::kMostInvitations; ++i) invite();
  ASSERT_TRUE(test::eventually([&] { return count() == Services::kMostInvitations; }));
  {
    MutexLock lock(mutex);
    served.back()();
  }
  invite();
  ASSERT_TRUE(test::eventually([&] { return count() == Services::kMostInvitations + 1; }));
  EXPECT_FALSE(job.worker(1).membership->lossOf(0).has_value());
  invite();
  EXPECT_TRUE(test::eventually([&] { return job.worker(1).membership->lossOf(0).has_value(); }));
  EXPECT_EQ(Services::kMostInvitations + 1, count());
}

}  // namespace
}  // namespace treadle::summation_server_test

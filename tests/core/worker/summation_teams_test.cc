// Summation services in which workers sum among themselves first (SummationOptions::teams), in one process.

#include <algorithm>
#include <bit>
#include <limits>
#include <new>

#include "tests/core/worker/summation_job.h"
#include "tests/support/gate.h"
#include "tests/support/job_with_servers.h"
#include "tests/support/seeds.h"
#include "treadle/core/group/group_service.h"
#include "treadle/core/group/half.h"
#include "treadle/core/summation/services.h"
#include "treadle/core/summation/teams.h"

namespace treadle::summation_teams_test {
namespace {

using namespace summation_service_test;
using summation::Teams;

// Two teams of two, and a worker that is alone.
class TeamJob : public ServiceJob {
 public:
  explicit TeamJob(size_t servers, const Teams& teams = {{"w0", "w1"}, {"w2", "w3"}},
                   const WorkerJob::Adjust& adjust = {})
      : ServiceJob(5, servers, adjust), services(5 + servers) {
    options.teams = teams;
  }

  void makeAll() {
    job.onAll([&](Worker& worker) { services[static_cast<size_t>(worker.self().rank)] = make(worker, kTensors); });
  }
  // Of the service's end, by rank.
  std::vector<Status> failures(const std::vector<size_t>& ranks) {
    std::vector<Status> all;
    for (const size_t rank : ranks) all.push_back(failureOf(services[rank].ended()));
    return all;
  }

  std::vector<SummationService> services;
};

void expectSums(size_t workers, size_t servers, const Teams& teams) {
  ServiceJob job(workers, servers);
  job.options.teams = teams;
  job.job.onAll([&](Worker& worker) {
    SummationService service = job.make(worker, kTensors);
    EXPECT_EQ(job.isServer(worker), service.isServer());
    EXPECT_EQ(worker.self().name == "w0", service.isFirst());
    if (service.isServer()) return service.ended().wait(kPatience);
    sumAndCheck(service, worker.self().rank, workers);
    service.leave().wait(kPatience);
  });
}

TEST(SummationTeams, SumTheTensorsOfAllWorkers) {
  expectSums(4, 1, {{"w0", "w1"}, {"w2", "w3"}});
  expectSums(4, 0, {{"w0", "w2"}, {"w3", "w1"}});  // in another order, and not next to each other
  expectSums(5, 2, {{"w4", "w1", "w3"}});          // and others that are alone
  expectSums(3, 0, {{"w0", "w1", "w2"}});
  expectSums(2, 1, {{"w0", "w1"}});
  expectSums(3, 1, {});
}

// What a program hangs on a sum may find no memory, as a `then` for its task. The service does not wait for the sum
// then.
TEST(SummationTeams, EndThoughAContinuationThrows) {
  ServiceJob job(2, 0);
  job.options.teams = {{"w0", "w1"}};
  job.job.onAll([&](Worker& worker) {
    SummationService service = job.make(worker, {{.name = "count", .elements = 1}});
    std::vector<float> one = {1};
    if (worker.self().rank == 1) worker.barrier();  // the other one has hung its continuation on its sum
    Future<void> sum = service.sum("count", std::span(one));
    if (worker.self().rank == 0) {
      sharedStateOf(sum)->onReady([] { throw std::bad_alloc(); });
      worker.barrier();
    }
    sum.wait(kPatience);
    EXPECT_EQ(2, one[0]);
    service = {};
  });
}

// Each team adds in the order of its workers, and then the service in that of the teams; and what a team passes on
// keeps its bits: those of a negative zero, too.
TEST(SummationTeams, GiveAllWorkersTheSameBits) {
  constexpr size_t kElements = 1'100'000;  // longer than what pushPull sums together
  TeamJob job(1, {{"w0", "w3"}, {"w1", "w2", "w4"}});
  std::vector<std::vector<float>> data(5);
  for (size_t rank = 0; rank < 5; ++rank) {
    test::Random random(rank + 1);
    for (size_t i = 0; i < kElements; ++i)
      data[rank].push_back(static_cast<float>(static_cast<int32_t>(random())) * 1e-3F);
    data[rank][0] = -0.0F;
    data[rank][1] = rank == 2 ? std::numeric_limits<float>::infinity() : 1.0F;
    data[rank][2] = std::numeric_limits<float>::denorm_min();
  }
  std::vector<float> sums(kElements);
  for (size_t i = 0; i < kElements; ++i) sums[i] = (data[0][i] + data[3][i]) + ((data[1][i] + data[2][i]) + data[4][i]);
  job.job.onAll([&](Worker& worker) {
    SummationService service = job.make(worker, {{"weight", group::DataType::kFloat32, kElements}});
    if (service.isServer()) return service.ended().wait(kPatience);
    std::vector<float>& mine = data[static_cast<size_t>(worker.self().rank)];
    service.sum("weight", std::span(mine)).wait(kPatience);
    EXPECT_TRUE(std::equal(sums.begin(), sums.end(), mine.begin(), [](float a, float b) {
      return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b);
    })) << worker.self().name;
    service.leave().wait(kPatience);
  });
}

template <class T>
T numberOf(int number) {
  if constexpr (std::is_same_v<T, group::Float16>) {
    return group::toFloat16(static_cast<float>(number));
  } else if constexpr (std::is_same_v<T, group::BFloat16>) {
    return group::toBFloat16(static_cast<float>(number));
  } else {
    return static_cast<T>(number);
  }
}

template <class T>
void expectSumOf(SummationService& service, int rank) {
  constexpr group::DataType kType = group::DataTypeOf<T>::kValue;
  std::vector<T> data(7, numberOf<T>(rank + 1));
  const std::vector<T> sums(7, numberOf<T>(15));
  service.sum(nameOf(kType), std::span(data)).wait(kPatience);
  EXPECT_EQ(0, std::memcmp(sums.data(), data.data(), 7 * sizeof(T))) << nameOf(kType);
}

template <class... T>
void expectSumsOf() {
  TeamJob job(1);
  job.job.onAll([&](Worker& worker) {
    SummationService service =
        job.make(worker, {{std::string(nameOf(group::DataTypeOf<T>::kValue)), group::DataTypeOf<T>::kValue, 7}...});
    if (service.isServer()) return service.ended().wait(kPatience);
    (expectSumOf<T>(service, worker.self().rank), ...);
    service.leave().wait(kPatience);
  });
}

TEST(SummationTeams, SumTensorsOfEachType) {
  expectSumsOf<group::Float16, group::BFloat16, float, double, int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t,
               uint32_t, uint64_t, std::complex<float>, std::complex<double>>();
}

double bytesAtTheServer(const SummationOptions& options) {
  test::JobWithServers<WorkerJob> job("w", 4, 1);
  job.onWorkers([&](Worker& worker) {
    SummationService service = SummationService::make(worker, options, kTensors);
    for (int round = 0; round < 3; ++round) {
      std::vector<float> weight(300'000, 1);
      service.sum("weight", std::span(weight)).wait(kPatience);
    }
    service.leave().wait(kPatience);
  });
  return static_cast<double>(job.server(0).metrics().summation.bytesReceived);
}

// What this is for: a server has one worker's data for each team. Of a team the bandwidth of its first worker counts:
// the server sums all where that is low.
TEST(SummationTeams, MoveTheirSumOnce) {
  const Teams teams = {{"w0", "w1"}, {"w2", "w3"}};
  const double alone = bytesAtTheServer({.bandwidths = {1, 1, 1, 1, 1e6}});
  const double together = bytesAtTheServer({.bandwidths = {1, 1e6, 1, 1e6, 1e6}, .teams = teams});
  EXPECT_NEAR(2, alone / together, 0.02);
  const double compressed =
      bytesAtTheServer({.compression = Compression::oneBit(), .bandwidths = {1, 1e6, 1, 1e6, 1e6}, .teams = teams});
  EXPECT_NEAR(30, together / compressed, 1);
}

// As all workers know their hosts alike.
TEST(SummationTeams, AreTheWorkersOfAHost) {
  ServiceJob job(5, 1);
  const auto workersOf = [&](bool byHost, bool asynchronous) {
    job.options.teamsByHost = byHost;
    job.options.asynchronous = asynchronous;
    std::vector<std::string> workers;
    job.job.onAll([&](Worker& worker) {
      worker.groups().setCosts(worker.groups().costs(), [](int rank) { return rank == 1 || rank == 3 ? "a" : "b"; });
      SummationService service = job.make(worker, {});
      if (worker.self().rank == 0) workers = service.times().workers;
      service.isServer() ? service.ended().wait(kPatience) : service.leave().wait(kPatience);
    });
    return workers;
  };
  EXPECT_EQ((std::vector<std::string>{"w0", "w1"}), workersOf(true, false));
  EXPECT_EQ(job.options.workers, workersOf(false, false));
  EXPECT_EQ(job.options.workers, workersOf(true, true));
}

// Others than these have no times.
TEST(SummationTeams, HaveTheTimesOfTheirFirstWorkers) {
  TeamJob job(1);
  job.makeAll();
  EXPECT_EQ((std::vector<std::string>{"w0", "w2", "w4"}), job.services[0].times().workers);
  EXPECT_EQ(SummationTimes(), job.services[1].times());
}

// All have the same bits, and what is lost of each sum arrives with the next ones.
TEST(SummationTeams, CompressWhatLeavesThem) {
  constexpr int kRounds = 50;
  TeamJob job(1);
  job.options.compression = Compression::oneBit();
  std::vector<std::vector<float>> last(5);
  job.job.onAll([&](Worker& worker) {
    SummationService service = job.make(worker, {{"weight", group::DataType::kFloat32, 1'000}});
    if (service.isServer()) return service.ended().wait(kPatience);
    std::vector<double> all(1'000);
    std::vector<float>& values = last[static_cast<size_t>(worker.self().rank)];
    for (int round = 0; round < kRounds; ++round) {
      values.clear();
      for (int i = 0; i < 1'000; ++i) values.push_back(static_cast<float>((worker.self().rank + 1) * (i % 7)));
      service.sum("weight", std::span(values)).wait(kPatience);
      for (size_t i = 0; i < 1'000; ++i) all[i] += static_cast<double>(values[i]);
    }
    for (size_t i = 0; i < 1'000; ++i) EXPECT_NEAR(15.0 * static_cast<double>(i % 7), all[i] / kRounds, 8) << i;
    service.leave().wait(kPatience);
  });
  for (size_t rank = 1; rank < 5; ++rank) EXPECT_EQ(last[0], last[rank]);
  EXPECT_NE(15, last[0][1]) << "nothing is lost";
}

// Sums of several rounds in any order, and many at a time, as each worker likes.
TEST(SummationTeams, KeepNoOrder) {
  constexpr size_t kTensorsHere = 40;
  std::vector<SummationTensor> tensors;
  for (size_t i = 0; i < kTensorsHere; ++i)
    tensors.push_back({"t" + std::to_string(i), group::DataType::kInt32, 1 + i * i * 50});
  TeamJob job(2);
  job.job.onAll([&](Worker& worker) {
    SummationService service = job.make(worker, tensors);
    if (service.isServer()) return service.ended().wait(kPatience);
    test::Random random(static_cast<uint64_t>(worker.self().rank) + 1);
    for (int32_t round = 0; round < 5; ++round) {
      std::vector<std::vector<int32_t>> data;
      std::vector<size_t> order(kTensorsHere);
      for (size_t i = 0; i < kTensorsHere; ++i) {
        order[i] = i;
        data.emplace_back(tensors[i].elements, worker.self().rank + round);
      }
      std::shuffle(order.begin(), order.end(), random);
      std::vector<Future<void>> sums;
      for (const size_t i : order) sums.push_back(service.sum(tensors[i].name, std::span(data[i])));
      for (auto& sum : sums) sum.wait(kPatience);
      for (size_t i = 0; i < kTensorsHere; ++i)
        EXPECT_EQ(std::vector<int32_t>(tensors[i].elements, 10 + 5 * round), data[i]) << i;
    }
    service.leave().wait(kPatience);
  });
}

// A sum that is under way begins again.
TEST(SummationTeams, GoOnWithoutALostServer) {
  test::JobWithServers<WorkerJob> job("w", 4, 2);
  std::vector<SummationService> services(4);
  const auto serviceOf = [&](const Worker& worker) -> SummationService& {
    return services[static_cast<size_t>(worker.self().rank)];
  };
  job.onWorkers([&](Worker& worker) {
    serviceOf(worker) = SummationService::make(worker, {.teams = {{"w0", "w1"}, {"w2", "w3"}}}, kTensors);
  });
  job.onWorkers([&](Worker& worker) { sumAndCheck(serviceOf(worker), worker.self().rank, 4); });
  std::vector<std::vector<float>> data(4, std::vector<float>(300'000, 1));
  std::vector<Future<void>> sums;
  for (size_t rank = 0; rank < 3; ++rank) sums.push_back(services[rank].sum("weight", std::span(data[rank])));
  job.killServer(0);
  sums.push_back(services[3].sum("weight", std::span(data[3])));
  for (Future<void>& sum : sums) sum.wait(kPatience);
  for (size_t rank = 0; rank < 4; ++rank) EXPECT_EQ(std::vector<float>(300'000, 4), data[rank]);
  job.onWorkers([&](Worker& worker) {
    sumAndCheck(serviceOf(worker), worker.self().rank, 4);
    serviceOf(worker).leave().wait(kPatience);
  });
}

// Whoever of a team it is, its own team and the others name it.
TEST(SummationTeams, NameALostWorkerOnAllOthers) {
  for (const size_t lost : {0, 1, 2, 3, 4}) {
    SCOPED_TRACE(lost);
    std::vector<float> values(300'000);
    TeamJob job(1);
    job.makeAll();
    const size_t waiting = lost == 2 ? 0 : 2;
    const Future<void> waits = job.services[waiting].sum("weight", std::span(values));
    job.job.kill(lost);
    for (size_t rank = 0; rank < 6; ++rank) {
      if (rank == lost) continue;
      const Status why = failureOf(job.services[rank].ended());
      EXPECT_FALSE(why.ok());
      EXPECT_TRUE(test::contains(why.message(), "w" + std::to_string(lost))) << rank << ": " << why.message();
    }
    EXPECT_FALSE(failureOf(waits).ok());
    EXPECT_FALSE(failureOf(job.services[waiting].sum("weight", std::span(values))).ok()) << "and later ones";
  }
}

TEST(SummationTeams, FailOnAllMachinesWhereOneSaysSo) {
  for (const size_t failing : {0, 1, 3}) {
    SCOPED_TRACE(failing);
    std::vector<float> values(300'000);
    TeamJob job(1);
    job.makeAll();
    const Future<void> sum = job.services[4].sum("weight", std::span(values));  // which nobody else begins
    job.services[failing].fail(failedPrecondition("the epoch is over"));
    for (const Status& why : job.failures({0, 1, 2, 3, 4, 5})) {
      EXPECT_EQ(Code::kFailedPrecondition, why.code());
      EXPECT_TRUE(test::contains(why.message(), "the epoch is over")) << why.message();
    }
    EXPECT_TRUE(test::contains(failureOf(sum).message(), "w" + std::to_string(failing))) << failureOf(sum).message();
  }
}

TEST(SummationTeams, ReportThatAWorkerHasDroppedItsPart) {
  for (const size_t dropping : {0, 1}) {
    SCOPED_TRACE(dropping);
    TeamJob job(1);
    job.makeAll();
    std::vector<float> values(300'000);
    const Future<void> sum = job.services[dropping].sum("weight", std::span(values));
    job.services[dropping] = {};
    EXPECT_TRUE(sum.ready()) << "or the data is still in use";
    const std::string text =
        "w" + std::to_string(dropping) + " reports: it has dropped its part in the summation service";
    for (const Status& why : job.failures({1 - dropping, 2, 3, 4, 5}))
      EXPECT_TRUE(test::contains(why.message(), text)) << why.message();
  }
}

TEST(SummationTeams, NameWhoHasNotBegunASum) {
  for (const std::string late : {"w0", "w1", "w3"}) {
    SCOPED_TRACE(late);
    TeamJob job(1);
    job.options.timeout = std::chrono::seconds(3);
    const auto outcomes = job.outcomes([&](Worker& worker) {
      std::vector<float> values(300'000);
      SummationService service = job.make(worker, kTensors);
      if (!service.isServer() && worker.self().name != late) service.sum("weight", std::span(values)).wait(kPatience);
      service.ended().wait(kPatience);
    });
    for (const Status& outcome : outcomes) {
      EXPECT_EQ(Code::kDeadlineExceeded, outcome.code()) << outcome.toString();
      EXPECT_TRUE(test::contains(outcome.message(), "'weight'")) << outcome.message();
      EXPECT_TRUE(test::contains(outcome.message(), late)) << outcome.message();
    }
  }
}

TEST(SummationTeams, NameWhoHasNotCome) {
  for (const std::string late : {"w0", "w1", "w4"}) {
    SCOPED_TRACE(late);
    TeamJob job(1);
    job.options.timeout = std::chrono::seconds(2);
    const auto outcomes = job.outcomes([&](Worker& worker) {
      if (worker.self().name != late) job.make(worker, kTensors);
    });
    for (size_t rank = 0; rank < outcomes.size(); ++rank) {
      if (rank == static_cast<size_t>(late[1] - '0')) continue;
      EXPECT_EQ(Code::kDeadlineExceeded, outcomes[rank].code()) << outcomes[rank].toString();
      EXPECT_TRUE(test::contains(outcomes[rank].message(), late)) << outcomes[rank].message();
    }
  }
}

// As of other workers: one that begins more sums than another one of its team has begun waits for nothing.
TEST(SummationTeams, NameWhoHasLeftBeforeAnotherOneWasDone) {
  for (const size_t leaving : {0, 1}) {
    SCOPED_TRACE(leaving);
    std::vector<float> values(300'000);
    TeamJob job(1);
    job.options.timeout = kNoTimeout;
    job.makeAll();
    job.services[leaving].leave();
    const Status why = failureOf(job.services[1 - leaving].sum("weight", std::span(values)));
    EXPECT_EQ(Code::kFailedPrecondition, why.code()) << why.toString();
    EXPECT_EQ("w" + std::to_string(leaving), why.worker());
    EXPECT_TRUE(test::contains(why.message(), "has left the summation service")) << why.message();
  }
}

TEST(SummationTeams, FailOnAllMachinesWhereTensorsDiffer) {
  for (const std::string other : {"w1", "w2", "w3"}) {
    SCOPED_TRACE(other);
    TeamJob job(1);
    const auto outcomes = job.outcomes([&](Worker& worker) {
      job.make(worker, {{"weight", group::DataType::kFloat32, worker.self().name == other ? 9U : 10U}});
    });
    for (const Status& outcome : outcomes) {
      EXPECT_EQ(Code::kInvalidArgument, outcome.code()) << outcome.toString();
      EXPECT_TRUE(test::contains(outcome.message(), "'weight', 9 float32")) << outcome.message();
    }
  }
}

TEST(SummationTeams, FailOnAllMachinesWhereOneHasOptionsThatAreNone) {
  TeamJob job(1);
  const auto outcomes = job.outcomes([&](Worker& worker) {
    SummationOptions options = job.options;
    if (worker.self().name == "w1") options.bandwidths = {1, 2};
    SummationService::make(worker, options, job.isServer(worker) ? std::vector<SummationTensor>() : kTensors);
  });
  for (const Status& outcome : outcomes)
    EXPECT_TRUE(test::contains(outcome.message(), "5 workers and 1 servers has 2 bandwidths")) << outcome.message();
}

TEST(SummationTeams, AreOfWorkersOfTheService) {
  WorkerJob job({"w0", "w1"});
  const auto refused = [&](const Teams& teams, bool asynchronous = false) {
    const SummationOptions options{.workers = {"w0"}, .asynchronous = asynchronous, .teams = teams};
    return test::messageOf<ArgumentError>([&] { SummationService::make(job[0], options, kTensors); });
  };
  EXPECT_EQ("'w1' is in SummationOptions::teams and not among the workers of the service; leave it out",
            refused({{"w0", "w1"}}));
  EXPECT_EQ("'w0' is twice in SummationOptions::teams; a worker is in one team", refused({{"w0"}, {"w0"}}));
  EXPECT_EQ("SummationOptions::teams has a team without workers", refused({{}}));
  EXPECT_EQ("an asynchronous summation service has no teams (SummationOptions::teams)", refused({{"w0"}}, true));
}

TEST(SummationTeams, RefuseWhatAServiceDoes) {
  std::vector<float> values(300'000), shorter(3);
  std::vector<std::byte> unaligned(300'000 * sizeof(float) + 1);
  TeamJob job(0);
  job.makeAll();
  const auto sum = [&](MutableBytes data) { return job.services[1].sum("weight", data, group::DataType::kFloat32); };
  EXPECT_NE("", test::messageOf<NotFoundError>([&] { job.services[1].sum("bias", std::span(values)); }));
  EXPECT_NE("", test::messageOf<ArgumentError>([&] { job.services[1].sum("weight", std::span(shorter)); }));
  EXPECT_NE("", test::messageOf<ArgumentError>([&] { sum(MutableBytes(unaligned).subspan(1)); }));
  const Future<void> first = sum(std::as_writable_bytes(std::span(values)));
  std::vector<float> more(300'000);
  EXPECT_NE("", test::messageOf<StateError>([&] { job.services[1].sum("weight", std::span(more)); }));
  job.services[1].leave();
  std::vector<int64_t> count(3);
  EXPECT_NE("", test::messageOf<StateError>([&] { job.services[1].sum("count", std::span(count)); }));
}

TEST(SummationTeams, BoundSumsUnderWay) {
  constexpr size_t kMost = 8192;
  std::vector<SummationTensor> tensors;
  for (size_t i = 0; i <= kMost; ++i) tensors.push_back({std::to_string(i), group::DataType::kUint8, 1});
  ServiceJob job(2, 0);
  job.options.teams = {{"w0", "w1"}};
  job.job.onAll([&](Worker& worker) {
    std::vector<uint8_t> data(kMost + 1, 1);
    SummationService service = job.make(worker, tensors);
    const auto sum = [&](size_t i) { return service.sum(tensors[i].name, std::span(&data[i], 1)); };
    if (worker.self().rank == 1) worker.barrier();
    std::vector<Future<void>> sums;
    for (size_t i = 0; i < kMost; ++i) sums.push_back(sum(i));
    if (worker.self().rank == 0) {
      EXPECT_NE("", test::messageOf<ResourceError>([&] { sum(kMost); }));
      worker.barrier();
    }
    for (Future<void>& one : sums) one.wait(kPatience);
    sum(kMost).wait(kPatience);
    EXPECT_EQ(std::vector<uint8_t>(kMost + 1, 2), data);
    service.leave().wait(kPatience);
  });
}

TEST(SummationTeams, EndWithTheirWorker) {
  SummationService service;
  std::vector<float> values(300'000);
  {
    TeamJob job(0);
    job.makeAll();
    service = job.services[1];
    const Future<void> waits = service.sum("weight", std::span(values));
    job.job.shutdown();
    EXPECT_FALSE(failureOf(waits).ok());
  }
  EXPECT_FALSE(failureOf(service.ended()).ok());
}

// Otherwise the thread that drops a service there would never return.
TEST(SummationTeams, LetGoOfTheirDataWithoutAFreeThreadOfThePool) {
  std::vector<std::vector<int64_t>> data(5, std::vector<int64_t>(3, 1));
  test::Gate gate;
  TeamJob job(1, {{"w0", "w1"}, {"w2", "w3"}}, [](JoinOptions& options) { options.maxConcurrentHandlers = 1; });
  job.makeAll();
  job.job[1].services().continueOn().post([&] { gate.wait(); });
  std::vector<Future<void>> sums;
  for (size_t rank = 0; rank < 5; ++rank) sums.push_back(job.services[rank].sum("count", std::span(data[rank])));
  sums[4].wait(kPatience);  // so its team has summed it
  job.services[1] = {};
  EXPECT_TRUE(sums[1].ready());
  gate.open();
}

TEST(SummationTeams, MayBeDroppedInAContinuation) {
  TeamJob job(1);
  for (int round = 0; round < 20; ++round) {
    job.job.onAll([&](Worker& worker) {
      SummationService service = job.make(worker, kTensors);
      const Future<void> ended = service.isServer() ? service.ended() : service.leave();
      Future<void> then = Future<void>(ended).then([kept = std::move(service)] { EXPECT_TRUE(kept.valid()); });
      then.wait(kPatience);
    });
  }
}

}  // namespace
}  // namespace treadle::summation_teams_test

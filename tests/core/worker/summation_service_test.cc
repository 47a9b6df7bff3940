// Summation services of whole workers, in one process.

#include "treadle/core/summation/service.h"

#include <algorithm>
#include <limits>

#include "tests/core/worker/summation_job.h"
#include "tests/support/no_memory.h"
#include "tests/support/tls_pair.h"
#include "treadle/core/summation/services.h"

namespace treadle::summation_service_test {
namespace {

using group::DataType;
using summation::Declaration;
using summation::Participant;
using summation::PumpOptions;

void expectSums(size_t workers, size_t servers, const WorkerJob::Adjust& adjust = {}) {
  ServiceJob job(workers, servers, adjust);
  job.job.onAll([&](Worker& worker) {
    SummationService service = job.make(worker, kTensors);
    EXPECT_EQ(job.isServer(worker), service.isServer());
    if (service.isServer()) return service.ended().wait(kPatience);
    sumAndCheck(service, worker.self().rank, workers);
    service.leave().wait(kPatience);
  });
}

TEST(SummationService, SumsTheTensorsOfAllWorkers) {
  for (const auto& [workers, servers] : {std::pair<size_t, size_t>{1, 0}, {2, 0}, {1, 2}, {3, 2}, {2, 3}}) {
    SCOPED_TRACE(std::to_string(workers) + " workers and " + std::to_string(servers) + " servers");
    expectSums(workers, servers);
  }
}

TEST(SummationService, SumsOverTcpAndTls) {
  expectSums(3, 1, [](JoinOptions& options) {
    options.channels = Channels{.unixSockets = false, .sharedMemory = false, .crossMemory = false};
  });
  expectSums(3, 1, [](JoinOptions& options) {
    options.channels = Channels{.unixSockets = false, .sharedMemory = false, .crossMemory = false};
    options.tls = TlsUse::kAlways;
  });
}

// Equal shares would have each machine send 1.2 times the bytes.
TEST(SummationService, GoesByBandwidths) {
  ServiceJob job(3, 1);
  job.options.bandwidths = {4, 3, 3, 2};
  job.job.onAll([&](Worker& worker) {
    SummationService service = job.make(worker, kTensors);
    if (!service.isServer()) {
      sumAndCheck(service, worker.self().rank, 3);
      service.leave();
    }
    service.ended().wait(kPatience);
    const std::vector<double> sent = {1.5, 1.125, 1.125, 0.75};  // t* = 3/8 (shares.h), for each bandwidth
    const double bytes = 3 * (4 * 300'000 + 2 * 70'001 + 8 * 3);
    EXPECT_NEAR(sent[static_cast<size_t>(worker.self().rank)], static_cast<double>(service.times().bytesSent) / bytes,
                0.02);
  });
}

// Data that each form packs without a loss; by the options of the service, and of one tensor.
TEST(SummationService, CompressesFloats) {
  using summation::Compression;
  for (const Compression& compression :
       {Compression::float16(), Compression::bfloat16(), Compression::oneBit(), Compression::topK(1)}) {
    ServiceJob job(2, 1);
    job.options.compression = compression;
    std::vector<SummationTensor> tensors = kTensors;
    tensors.push_back({"exact", DataType::kFloat32, 1'000, Compression()});
    tensors.push_back({"one bit", DataType::kFloat32, 1'000, Compression::oneBit()});
    job.job.onAll([&](Worker& worker) {
      SummationService service = job.make(worker, tensors);
      if (service.isServer()) return service.ended().wait(kPatience);
      const int rank = worker.self().rank;
      for (int round = 0; round < 3; ++round) {
        std::vector<float> weight(300'000, static_cast<float>(rank + round)), oneBit(1'000, -3.0F);
        auto exact = valuesOf<float>(rank, round, 1'000);
        auto shorts = valuesOf<int16_t>(rank, round, 70'001);
        std::vector<Future<void>> sums;
        sums.push_back(service.sum("weight", std::span(weight)));
        sums.push_back(service.sum("one bit", std::span(oneBit)));
        sums.push_back(service.sum("exact", std::span(exact)));
        sums.push_back(service.sum("short", std::span(shorts)));
        for (auto& sum : sums) sum.wait(kPatience);
        EXPECT_EQ(std::vector<float>(300'000, static_cast<float>(1 + 2 * round)), weight);
        EXPECT_EQ(std::vector<float>(1'000, -6), oneBit);
        EXPECT_EQ(sumOfAll<float>(2, round, 1'000), exact);
        EXPECT_EQ(sumOfAll<int16_t>(2, round, 70'001), shorts);
      }
      service.leave().wait(kPatience);
    });
  }
}

TEST(SummationService, CountsItsTimes) {
  ServiceJob job(2, 1);
  job.options.name = "counted";
  job.job.onAll([&](Worker& worker) {
    SummationService service = job.make(worker, kTensors);
    if (service.isServer()) return service.ended().wait(kPatience);
    EXPECT_EQ(Duration::zero(), service.times().underWay());
    sumAndCheck(service, worker.self().rank, 2);
    service.leave().wait(kPatience);
    const SummationTimes times = service.times();
    EXPECT_EQ("counted", times.service);
    EXPECT_EQ(worker.self().name, times.worker);
    EXPECT_EQ(job.options.workers, times.workers);
    EXPECT_EQ(job.options.servers, times.servers);
    EXPECT_EQ(12u, times.sums);
    EXPECT_GT(times.underWay(), Duration::zero());
  });
}

// Each worker takes its own number of steps, at its own pace: the parameters have all changes in the end.
TEST(SummationService, KeepsTheLatestParametersWhereItIsAsynchronous) {
  ServiceJob job(3, 2);
  job.options.asynchronous = true;
  constexpr size_t kCount = 300'000;
  const auto stepsOf = [](int rank) { return 2 + 3 * rank; };
  job.job.onAll([&](Worker& worker) {
    SummationService service = job.make(worker, {{"weight", DataType::kFloat32, kCount}});
    if (service.isServer()) return service.ended().wait(kPatience);
    const int rank = worker.self().rank;
    EXPECT_EQ(rank == 0, service.isFirst());
    std::vector<float> latest(kCount, service.isFirst() ? 1'000.0F : 0.0F);
    service.sum("weight", std::span(latest)).wait(kPatience);
    EXPECT_GE(latest.front(), 1'000);
    for (int step = 0; step < stepsOf(rank); ++step) {
      std::vector<float> change(kCount, 1);
      service.sum("weight", std::span(change)).wait(kPatience);
      EXPECT_GE(change.front(), latest.front() + 1);
      latest = change;
    }
    const std::vector<float> all(kCount, 1'000.0F + static_cast<float>(stepsOf(0) + stepsOf(1) + stepsOf(2)));
    EXPECT_TRUE(test::eventually([&] {
      latest.assign(kCount, 0);
      service.sum("weight", std::span(latest)).wait(kPatience);
      return latest == all;
    }));
    service.leave().wait(kPatience);
  });
}

TEST(SummationService, FailsOnAllMachinesWhereWorkersDoNotAgreeThatItIsAsynchronous) {
  ServiceJob job(2, 1);
  for (const auto& [staleness, text] :
       {std::pair<std::optional<uint64_t>, std::string>{
            {}, "w1 makes an asynchronous service of any staleness, and w0 a synchronous service"},
        {3, "w1 makes an asynchronous service of staleness 3, and w0 a synchronous service"}}) {
    const auto outcomes = job.outcomes([&, staleness = staleness](Worker& worker) {
      SummationOptions options = job.options;
      options.asynchronous = worker.self().name == "w1";
      if (options.asynchronous) options.staleness = staleness;
      SummationService::make(worker, options, job.isServer(worker) ? std::vector<SummationTensor>() : kTensors);
    });
    for (const Status& outcome : outcomes) {
      EXPECT_EQ(Code::kInvalidArgument, outcome.code()) << outcome.toString();
      EXPECT_TRUE(test::contains(outcome.message(), text)) << outcome.message();
    }
  }
}

// Two at a time, and one after the other, by the same workers.
TEST(SummationService, IsOneOfSeveral) {
  ServiceJob job(2, 1);
  for (int round = 0; round < 2; ++round) {
    job.job.onAll([&](Worker& worker) {
      SummationService first = job.make(worker, kTensors);
      SummationOptions options = job.options;
      options.name = "the second";
      SummationService second =
          SummationService::make(worker, options, first.isServer() ? std::vector<SummationTensor>() : kTensors);
      if (!first.isServer()) {
        sumAndCheck(second, worker.self().rank, 2);
        sumAndCheck(first, worker.self().rank, 2);
        first.leave();
        second.leave();
      }
      first.ended().wait(kPatience);
      second.ended().wait(kPatience);
    });
  }
}

TEST(SummationService, FailsOnAllMachinesWhereTensorsDiffer) {
  for (const auto& [tensors, text] : {
           std::pair<std::vector<SummationTensor>, std::string>{{{"weight", DataType::kFloat32, 10}},
                                                                "w1 declares 1 tensors, and w0 2"},
           {{{"weight", DataType::kFloat32, 10}, {"bias", DataType::kFloat32, 4}},
            "tensor 1 is declared by w1 as 'bias', 4 float32, and by w0 as 'bias', 3 float32"},
           {{{"weight", DataType::kFloat64, 10}, {"bias", DataType::kFloat32, 3}},
            "tensor 0 is declared by w1 as 'weight', 10 float64, and by w0 as 'weight', 10 float32"},
           {{{"weight", DataType::kFloat32, 10, Compression::oneBit()}, {"bias", DataType::kFloat32, 3}},
            "tensor 0 is declared by w1 as 'weight', 10 float32 as one bit, and by w0 as 'weight', 10 float32"},
           {{{"weight", DataType::kFloat32, 10}, {"bias", DataType::kFloat32, 3, Compression::topK(0.01)}},
            "tensor 1 is declared by w1 as 'bias', 3 float32 as 16 of 1600, and by w0 as 'bias', 3 float32"},
       }) {
    ServiceJob job(3, 1);
    const auto outcomes = job.outcomes([&, &tensors = tensors](Worker& worker) {
      const std::vector<SummationTensor> same = {{"weight", DataType::kFloat32, 10}, {"bias", DataType::kFloat32, 3}};
      job.make(worker, worker.self().name == "w1" ? tensors : same);
    });
    for (const Status& outcome : outcomes) {
      EXPECT_EQ(Code::kInvalidArgument, outcome.code()) << outcome.toString();
      EXPECT_TRUE(outcome.message().find(text) != std::string::npos) << outcome.message();
    }
  }
}

TEST(SummationService, FailsOnAllMachinesWhereOneCannotTakePart) {
  ServiceJob job(2, 1);
  const auto outcomes = job.outcomes([&](Worker& worker) { SummationService::make(worker, job.options, kTensors); });
  for (const Status& outcome : outcomes)
    EXPECT_TRUE(outcome.message().find("s0 is a server of the summation service and has tensors") != std::string::npos)
        << outcome.message();
}

TEST(SummationService, FailsWhereThereIsNoMemoryForItsTensors) {
  if (!test::kMemoryMayFail) GTEST_SKIP() << "the sanitizer allocates";
  constexpr size_t kTensorCount = 10'000;
  WorkerJob job({"w0"});
  std::vector<SummationTensor> tensors;
  for (const std::string& name : numbered("t", kTensorCount)) tensors.push_back({name, DataType::kFloat32, 1});
  test::leastFailing = kTensorCount;
  const auto make = [&] { SummationService::make(job[0], {.workers = {"w0"}}, std::move(tensors)); };
  EXPECT_EQ("there is no memory to make a summation service", test::messageOf<ResourceError>(make));
  test::leastFailing = SIZE_MAX;
}

// Soon, and not after a timeout of their own.
TEST(SummationService, FailsOnAllMachinesWhereOneHasATimeoutThatIsNone) {
  ServiceJob job(2, 1);
  const TimePoint begin = Clock::now();
  const auto outcomes = job.outcomes([&](Worker& worker) {
    SummationOptions options = job.options;
    if (worker.self().name == "w1") options.timeout = Duration::zero();
    SummationService::make(worker, options, job.isServer(worker) ? std::vector<SummationTensor>() : kTensors);
  });
  EXPECT_LT(Clock::now() - begin, job.options.timeout / 2);
  for (const Status& outcome : outcomes) {
    EXPECT_EQ(Code::kInvalidArgument, outcome.code()) << outcome.toString();
    EXPECT_TRUE(test::contains(outcome.message(), "timeout must be positive"));
  }
}

TEST(SummationService, RefusesOptionsAndTensorsThatAreNone) {
  WorkerJob job({"w0"});
  const auto refused = [&](const SummationOptions& options, const std::vector<SummationTensor>& tensors) {
    return test::messageOf<ArgumentError>([&] { SummationService::make(job[0], options, tensors); });
  };
  EXPECT_NE("", refused({.workers = {"w0"}, .timeout = Duration::zero()}, kTensors));
  EXPECT_NE("", refused({.workers = {"w0"}, .staleness = 1}, kTensors));
  EXPECT_EQ("the fraction of top-k compression is 0.000000; it can be from 1/2048 to 1",
            refused({.workers = {"w0"}, .compression = Compression::topK(0)}, kTensors));
  EXPECT_EQ("'count' is of int64; only float32 can be compressed",
            refused({.workers = {"w0"}}, {{"count", DataType::kInt64, 3, Compression::oneBit()}}));
  EXPECT_NE("", refused({.workers = {"w0"}}, {{"weight", DataType::kFloat32, 3, Compression::topK(2)}}));
  const std::string nothing = "an asynchronous summation service compresses nothing";
  EXPECT_EQ(nothing, refused({.workers = {"w0"}, .asynchronous = true, .compression = Compression::oneBit()}, {}));
  EXPECT_EQ(nothing, refused({.workers = {"w0"}, .asynchronous = true},
                             {{"weight", DataType::kFloat32, 3, Compression::float16()}}));
  EXPECT_NE("", refused({.workers = {"w0"}, .bandwidths = {1, 1}}, kTensors));
  for (const double bandwidth : {-1.0, 0.0, 1e-320, 1e300, std::numeric_limits<double>::quiet_NaN()})
    EXPECT_NE("", refused({.workers = {"w0"}, .bandwidths = {bandwidth}}, kTensors));
  EXPECT_NE("", refused({.workers = {"w0", "w0"}}, kTensors));
  EXPECT_EQ("the name of a summation service has 65 bytes; at most 64 are possible",
            refused({.workers = {"w0"}, .name = std::string(65, 'n')}, kTensors));
  const SummationOptions unnamed{.bandwidths = {1, 1}};  // the number of machines follows from the job
  EXPECT_TRUE(unnamed.validate().ok());
  EXPECT_EQ("two tensors of a summation service are called 'a'",
            refused({.workers = {"w0"}}, {{"a", DataType::kFloat32, 1}, {"a", DataType::kFloat32, 1}}));
  EXPECT_NE("", refused({.workers = {"w0"}}, {{"", DataType::kFloat32, 1}}));
  EXPECT_NE("", refused({.workers = {"w0"}}, {{"a", DataType::kBool, 1}}));
  EXPECT_NE(
      "", test::messageOf<NotFoundError>([&] { SummationService::make(job[0], {.workers = {"w0", "w1"}}, kTensors); }));
  EXPECT_FALSE(SummationService().valid());
  EXPECT_NE("", test::messageOf<StateError>([] { SummationService().ended(); }));
  EXPECT_TRUE(SummationOptions().validate().ok());
}

TEST(SummationService, RefusesWhatWasNotDeclared) {
  WorkerJob job({"w0"});
  SummationService service = SummationService::make(job[0], {.workers = {"w0"}}, kTensors);
  std::vector<float> values(3);
  EXPECT_NE("", test::messageOf<NotFoundError>([&] { service.sum("bias", std::span(values)); }));
  EXPECT_EQ("'count' was declared as int64, not float32",
            test::messageOf<ArgumentError>([&] { service.sum("count", std::span(values)); }));
  EXPECT_EQ("'weight' was declared with 1200000 bytes, and its data has 12",
            test::messageOf<ArgumentError>([&] { service.sum("weight", std::span(values)); }));
}

// A machine that takes another one for a server would give it sums of fewer workers.
TEST(SummationService, IsAnotherOneWhereTheWorkersAreOthers) {
  WorkerJob job({"w0", "w1"});
  job.onAll([&](Worker& worker) {
    SummationOptions options{.workers = {"w0", "w1"}, .timeout = std::chrono::milliseconds(300)};
    const bool isServer = worker.self().name == "w1";
    if (isServer) options = {.workers = {"w0"}, .servers = {"w1"}, .timeout = options.timeout};
    EXPECT_NE("", test::messageOf<TimeoutError>([&] {
                SummationService::make(worker, options, isServer ? std::vector<SummationTensor>() : kTensors);
              }));
  });
}

// It has failed elsewhere between the last barrier and the start.
TEST(SummationService, FailsBeforeItStarts) {
  WorkerJob job({"w0", "w1"});
  const std::vector<WorkerInfo> machines = {job[0].self(), job[1].self()};
  const auto participant = job[0].services().begin(7, machines, 1, 0, kPatience);
  test::TcpPair ends;
  EXPECT_TRUE(participant->take(1, std::move(ends.dialer)).ok());
  participant->awaitDialers(deadlineAfter(kPatience));
  participant->failedOn(1, cancelled("it was dropped"));
  const Declaration declaration = {{{DataType::kFloat32, 4}}, {{0, 0, 4, 1}}, 1};
  EXPECT_EQ("w1 reports: it was dropped", test::messageOf<CancelledError>([&] { participant->start(declaration); }));
}

// Only workers say that a server is lost, to the first one, and only that one says where its parts go.
TEST(SummationService, TakesNoWordAboutLostServersFromWhoDoesNotDecide) {
  WorkerJob job({"w0", "w1", "s0", "stranger"});
  const std::vector<WorkerInfo> machines = {job[0].self(), job[1].self(), job[2].self()};
  std::vector<std::shared_ptr<summation::Participant>> all;
  for (size_t self = 0; self < 3; ++self)
    all.push_back(job[self].services().begin(7, machines, /*workers=*/2, self, kPatience));
  const Status why = peerLost("s0", "its connection broke");
  EXPECT_TRUE(all[0]->lostElsewhere(1, 2, why).ok());
  EXPECT_TRUE(all[1]->moved(0, 2, {0}).ok());
  for (const Status& refused :
       {all[0]->lostElsewhere(1, 1, why), all[0]->lostElsewhere(1, 3, why), all[0]->lostElsewhere(2, 2, why),
        all[0]->lostElsewhere(3, 2, why), all[1]->lostElsewhere(0, 2, why), all[0]->moved(1, 2, {0}),
        all[1]->moved(2, 2, {0}), all[1]->moved(3, 2, {0}), all[1]->moved(0, 1, {0}), all[1]->moved(0, 3, {0})})
    EXPECT_EQ(Code::kDataLoss, refused.code());
  EXPECT_TRUE(all[2]->moved(0, 2, {0}).ok());  // it is the lost one, and lives
  EXPECT_EQ("w0 and the others go on without this server", all[2]->giveUp(cancelled("later")).message());
}

// It takes no connection any more, and its report comes before or after it has refused one.
TEST(SummationService, NamesWhyAMachineHasFailedThatIsDialed) {
  WorkerJob job({"w0", "w1"});
  const std::vector<WorkerInfo> machines = {job[0].self(), job[1].self()};
  const auto dialed = job[0].services().begin(7, machines, 2, 0, kPatience);
  const auto dialer = job[1].services().begin(7, machines, 2, 1, kPatience);
  const auto dial = [&](int rank) {
    dialed->giveUp(cancelled("it has no room")).ignore();
    Result<io::Stream> stream = job[1].services().dial(rank, 7, deadlineAfter(kPatience));
    EXPECT_TRUE(test::contains(stream.status().message(), "its connection for a summation service is not awaited"));
    return stream;
  };
  EXPECT_EQ("w0 reports: it has no room",
            test::messageOf<CancelledError>([&] { dialer->dialOthers(dial, deadlineAfter(kPatience)); }));
}

TEST(SummationService, NamesWhoDoesNotTakeItsConnection) {
  WorkerJob job({"w0", "w1"});
  const std::vector<WorkerInfo> machines = {job[0].self(), job[1].self()};
  const auto dialer = job[1].services().begin(7, machines, 2, 1, kPatience);
  const auto dial = [](int) -> Result<io::Stream> { return peerLost("w0", "w0 does not answer"); };
  EXPECT_EQ("w0 does not answer", test::messageOf<PeerLostError>(
                                      [&] { dialer->dialOthers(dial, deadlineAfter(std::chrono::milliseconds(50))); }));
}

TEST(SummationService, NamesWhoHasNotCome) {
  ServiceJob job(2, 1);
  job.options.timeout = std::chrono::milliseconds(300);
  const auto outcomes = job.outcomes([&](Worker& worker) {
    if (worker.self().name != "s0") job.make(worker, kTensors);
  });
  for (size_t rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(Code::kDeadlineExceeded, outcomes[rank].code());
    EXPECT_TRUE(outcomes[rank].message().find("'s0'") != std::string::npos) << outcomes[rank].message();
  }
}

TEST(SummationService, NamesWhoHasNotBegunASum) {
  ServiceJob job(3, 1);
  job.options.timeout = std::chrono::seconds(1);
  const auto outcomes = job.outcomes([&](Worker& worker) {
    SummationService service = job.make(worker, kTensors);
    std::vector<float> values(300'000);
    if (worker.self().name == "w0" || worker.self().name == "w2")
      service.sum("weight", std::span(values)).wait(kPatience);
    service.ended().wait(kPatience);
  });
  for (const Status& outcome : outcomes) {
    EXPECT_EQ(Code::kDeadlineExceeded, outcome.code()) << outcome.toString();
    EXPECT_EQ("w1", outcome.worker());
    EXPECT_TRUE(outcome.message().find("the sum of 'weight' was not begun in 1 s by w1") != std::string::npos)
        << outcome.message();
  }
}

// A worker that goes is named on all other machines, sums under way or not.
TEST(SummationService, NamesALostWorkerOnAllOthers) {
  for (const size_t lost : {1, 2}) {
    ServiceJob job(3, 1);
    std::vector<SummationService> services(4);
    job.job.onAll(
        [&](Worker& worker) { services[static_cast<size_t>(worker.self().rank)] = job.make(worker, kTensors); });
    std::vector<float> values(300'000);
    const Future<void> waits = services[0].sum("weight", std::span(values));
    services[lost] = {};
    job.job.kill(lost);
    for (size_t rank = 0; rank < 4; ++rank) {
      if (rank == lost) continue;
      const Status why = failureOf(services[rank].ended());
      EXPECT_FALSE(why.ok());
      EXPECT_TRUE(why.message().find(job.job.names()[lost]) != std::string::npos) << why.message();
    }
    EXPECT_FALSE(failureOf(waits).ok());
  }
}

TEST(SummationService, ReportsThatAMachineHasDroppedItsPart) {
  ServiceJob job(2, 2);
  std::vector<SummationService> services(4);
  job.job.onAll(
      [&](Worker& worker) { services[static_cast<size_t>(worker.self().rank)] = job.make(worker, kTensors); });
  services[2] = {};
  for (const size_t rank : {0, 1, 3})
    EXPECT_EQ("s0 reports: it has dropped its part in the summation service",
              failureOf(services[rank].ended()).message());
  std::vector<float> values(300'000);
  EXPECT_EQ("s0 reports: it has dropped its part in the summation service",
            failureOf(services[0].sum("weight", std::span(values))).message());
}

TEST(SummationService, FailsOnAllMachinesWhereOneSaysSo) {
  ServiceJob job(2, 1);
  std::vector<SummationService> services(3);
  job.job.onAll(
      [&](Worker& worker) { services[static_cast<size_t>(worker.self().rank)] = job.make(worker, kTensors); });
  std::vector<float> values(300'000);
  Future<void> sum = services[0].sum("weight", std::span(values));  // which the other worker does not begin
  EXPECT_TRUE(test::contains(test::messageOf<ArgumentError>([&] { services[1].fail(Status()); }), "this status is OK"));
  services[1].fail(failedPrecondition("the epoch is over"));
  EXPECT_EQ("the epoch is over", failureOf(services[1].ended()).message());
  for (const Future<void>& future : {sum, services[0].ended(), services[2].ended()})
    EXPECT_EQ("w1 reports: the epoch is over", failureOf(future).message());
  services[1].fail(failedPrecondition("another reason"));
  EXPECT_EQ("the epoch is over", failureOf(services[1].ended()).message());
}

// The last copy goes where a future's continuation goes, which may be the thread that made it ready.
TEST(SummationService, MayBeDroppedInAContinuation) {
  ServiceJob job(2, 1);
  for (int round = 0; round < 20; ++round) {
    job.job.onAll([&](Worker& worker) {
      SummationService service = job.make(worker, kTensors);
      Future<void> ended = service.isServer() ? service.ended() : service.leave();
      Future<void> then = ended.then([kept = std::move(service)] { EXPECT_TRUE(kept.valid()); });
      then.wait(kPatience);
    });
  }
}

// The worker goes on, and makes no other service.
TEST(SummationService, LetsGoOfItsMemoryWhereItIsDroppedOnAThreadThatMustNotWait) {
  WorkerJob job({"w0"});
  Promise<void> promise;
  const Future<void> gone = promise.future();
  auto report = [holds = std::make_shared<Promise<void>>(std::move(promise))](const Status&) {};
  auto participant = std::make_shared<Participant>(std::vector{job[0].self()}, 1, 0, PumpOptions(), std::move(report));
  participant->start({{{DataType::kFloat32, 4}}, {{0, 0, 4, 0}}, 1});
  job[0].services().keeper()->keep(std::move(participant));
  EXPECT_EQ("the promise of this future was dropped", failureOf(gone).message());
}

TEST(SummationService, EndsWithItsWorker) {
  SummationService service;
  std::vector<float> values(300'000);
  {
    ServiceJob job(2, 0);
    std::vector<SummationService> services(2);
    job.job.onAll(
        [&](Worker& worker) { services[static_cast<size_t>(worker.self().rank)] = job.make(worker, kTensors); });
    service = services[0];
    const Future<void> waits = service.sum("weight", std::span(values));
    job.job.shutdown();
    EXPECT_FALSE(failureOf(waits).ok());
  }
  EXPECT_FALSE(failureOf(service.ended()).ok());
}

// Of a worker that has a part in no such service, or none in any.
TEST(SummationService, TakesNoConnectionThatItDoesNotAwait) {
  ServiceJob job(2, 0);
  std::vector<SummationService> services(2);
  job.job.onAll(
      [&](Worker& worker) { services[static_cast<size_t>(worker.self().rank)] = job.make(worker, kTensors); });
  EXPECT_EQ(Code::kFailedPrecondition, job.job[0].services().check(1, 12345).code());
  EXPECT_EQ(Code::kCancelled, job.job[0].services().attach(1, 12345, {}).code());
}

}  // namespace
}  // namespace treadle::summation_service_test

// What can be wrong about joining: one clear error for every worker concerned. How the workers meet is tested
// in tests/core/cluster, and with real processes in tests/jobs.

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <thread>

#include "tests/core/worker/bulk.h"
#include "tests/core/worker/here.h"
#include "tests/support/certificates.h"
#include "tests/support/meeting_at.h"
#include "treadle/core/base/log.h"
#include "treadle/core/cluster/rendezvous.h"
#include "treadle/core/group/group.h"
#include "treadle/core/group/group_service.h"
#include "treadle/core/io/socket.h"

namespace treadle::join_test {
namespace {

using test::contains;
using test::messageOf;
using test::statusOf;
using namespace std::chrono_literals;

int add(int a, int b) { return a + b; }
int subtract(int a, int b) { return a - b; }

class Join : public ::testing::Test {
 protected:
  JoinOptions options(const std::string& name, int rank, int size) {
    JoinOptions made = test::joinOptions(name, rank, size, port);
    made.joinTimeout = test::kHangs;
    return made;
  }
  // All join at once; why each could not, OK for those that could.
  static std::vector<Status> joinAll(const std::vector<JoinOptions>& all) {
    std::vector<std::future<Status>> joining;
    for (const JoinOptions& one : all)
      joining.push_back(std::async(std::launch::async, [&one] {
        try {
          Worker::join(one);
          return Status();
        } catch (const Error& error) {
          return error.status();
        }
      }));
    std::vector<Status> outcomes;
    for (auto& one : joining) outcomes.push_back(one.get());
    return outcomes;
  }

  uint16_t port = test::freePort();
};

TEST_F(Join, returnsWhenEveryWorkerIsThere) {
  auto joining = [this](const char* name, int rank) {
    return std::async(std::launch::async, [this, name, rank] { return Worker::join(options(name, rank, 3)); });
  };
  auto first = joining("a", 0), second = joining("b", 1);
  EXPECT_EQ(std::future_status::timeout, first.wait_for(200ms));
  EXPECT_EQ(std::future_status::timeout, second.wait_for(0s));
  auto last = joining("c", 2);
  std::vector<std::shared_ptr<Worker>> workers = {first.get(), second.get(), last.get()};
  EXPECT_EQ("c", workers[0]->peer(2).name);
  std::vector<std::future<void>> ending;
  for (auto& worker : workers) ending.push_back(std::async(std::launch::async, [&] { worker->shutdown(); }));
  for (auto& one : ending) one.get();
}

// tests/jobs/kill.py strikes at these lines.
TEST_F(Join, reportsItsStepsAtTheLogLevelDebug) {
  testing::internal::CaptureStderr();
  setLogLevel(LogLevel::kDebug);
  auto other = std::async(std::launch::async, [&] { Worker::join(options("b", 1, 2))->shutdown(); });
  Worker::join(options("a", 0, 2))->shutdown();
  other.get();
  setLogLevel(LogLevel::kWarn);
  const std::string log = testing::internal::GetCapturedStderr();
  for (const char* step : {"debug a: worker 'b' (rank 1) has registered", "debug a: all workers have registered",
                           "debug b: this worker has joined the job", "debug a: this worker is in its shutdown"})
    EXPECT_TRUE(contains(log, step)) << log;
}

// All members of a group choose algorithms by them, and have to choose alike.
TEST_F(Join, givesAllWorkersTheCostsThatRankZeroMeasured) {
  testing::internal::CaptureStderr();
  setLogLevel(LogLevel::kInfo);
  const test::WorkerJob::Adjust onlyTcp = [](JoinOptions& one) { one.channels = Channels{.unixSockets = false}; };
  for (const auto& adjust : {test::WorkerJob::Adjust(), onlyTcp}) {
    test::WorkerJob job({"a", "b", "c"}, {}, adjust);
    const cluster::Costs costs = job[0].groups().costs();
    EXPECT_EQ(rounded(costs), costs);
    EXPECT_NE(cluster::Costs().sameHost, costs.sameHost) << "the defaults are not rounded";
    EXPECT_EQ(std::max(1U, std::thread::hardware_concurrency()), costs.cores);
    std::vector<group::ProcessGroup> groups;
    for (size_t rank = 0; rank < 3; ++rank) {
      EXPECT_EQ(costs, job[rank].groups().costs());
      groups.push_back(group::ProcessGroup::make(job[rank], {"a", "b", "c"}));
      const group::Surroundings& known = groups.back().core().surroundings();
      EXPECT_EQ(costs, known.costs);
      EXPECT_EQ(1, known.placement.hosts());
      EXPECT_EQ(3, known.placement.members());
    }
    const std::string log = testing::internal::GetCapturedStderr();
    testing::internal::CaptureStderr();
    EXPECT_TRUE(contains(log, "info a: collective operations are chosen by these costs")) << log;
    EXPECT_TRUE(contains(log, describe(costs))) << log;
  }
  setLogLevel(LogLevel::kWarn);
  testing::internal::GetCapturedStderr();
}

TEST_F(Join, takesTheCostsOfTheEnvironmentInPlaceOfMeasuring) {
  const cluster::Costs given{{11e-6, 3e9}, {22e-6, 4e9}, 5e-6, 6};
  ::setenv("TREADLE_COSTS", describe(given).c_str(), 1);
  {
    test::WorkerJob job({"a", "b"});
    for (size_t rank = 0; rank < 2; ++rank) EXPECT_EQ(given, job[rank].groups().costs());
  }
  ::setenv("TREADLE_COSTS", "--cores none", 1);
  for (const Status& why : joinAll({options("a", 0, 2), options("b", 1, 2)}))
    EXPECT_TRUE(contains(why.message(), "TREADLE_COSTS: '--cores none' is none of the costs")) << why.toString();
  ::unsetenv("TREADLE_COSTS");
}

TEST_F(Join, refusesANameThatIsUsedTwice) {
  for (const Status& why : joinAll({options("first", 0, 3), options("same", 1, 3), options("same", 2, 3)})) {
    EXPECT_TRUE(contains(why.message(), "'same' is used twice"));
    EXPECT_TRUE(contains(why.message(), "rank 1"));
    EXPECT_TRUE(contains(why.message(), "rank 2"));
  }
}

TEST_F(Join, namesTheRankThatDoesNotCome) {
  // The two ranks must meet within the limit. Rank 0 keeps a twentieth of it to notify the other.
  EXPECT_TRUE(test::withLongerLimits(4s, [&](Duration limit) {
    std::vector<JoinOptions> two = {options("a", 0, 3), options("c", 2, 3)};
    for (JoinOptions& one : two) one.joinTimeout = limit;
    const std::vector<Status> outcomes = joinAll(two);
    const Status& rank0 = outcomes[0];
    EXPECT_EQ(Code::kDeadlineExceeded, rank0.code()) << rank0.toString();
    EXPECT_TRUE(contains(rank0.message(), "rank 1") && contains(rank0.message(), toText(limit))) << rank0.toString();
    for (const Status& why : outcomes)
      if (why.code() != Code::kDeadlineExceeded || !contains(why.message(), "rank 1 of 3") ||
          !contains(why.message(), toText(limit)))
        return ::testing::AssertionFailure() << why.toString();
    return ::testing::AssertionSuccess();
  }));
}

// All hear of the one who cannot be reached, also those who had reached it, and nobody of one who left because of it.
TEST_F(Join, namesForAllWhoCannotBeConnectedTo) {
  std::vector<JoinOptions> two = {options("a", 0, 3), options("b", 1, 3)};
  for (JoinOptions& one : two) one.launch->jobKey = "a key of this job";
  auto silent = std::async(std::launch::async, [&] {
    link::Credentials known{"a key of this job", {link::Purpose::kRendezvous, {"c", 2}}};
    TimePoint patience = deadlineAfter(test::kHangs);
    auto client = valueOrThrow(cluster::RendezvousClient::connect(
        test::meetingAt({valueOrThrow(io::Address::tcp("127.0.0.1", port))}), known, patience));
    valueOrThrow(client->exchange(3, {"unix:treadle-test-nobody-" + std::to_string(port)}, patience));
    return client->ready(patience);
  });
  std::vector<Status> outcomes = joinAll(two);
  outcomes.push_back(silent.get());
  for (const Status& why : outcomes) {
    EXPECT_EQ(Code::kPeerLost, why.code()) << why.toString();
    EXPECT_EQ("c", why.worker());
    EXPECT_TRUE(contains(why.message(), "cannot join: worker 'c' (rank 2) cannot be connected to"));
  }
}

TEST_F(Join, refusesWorldSizesThatDiffer) {
  for (const Status& why : joinAll({options("a", 0, 2), options("b", 1, 3)})) {
    EXPECT_TRUE(contains(why.message(), "3"));
    EXPECT_TRUE(contains(why.message(), "2"));
    EXPECT_TRUE(contains(why.message(), "rank 0"));
  }
}

TEST_F(Join, refusesRanksThatDoNotFitTheWorld) {
  EXPECT_TRUE(contains(messageOf<ArgumentError>([&] { Worker::join(options("a", 2, 2)); }), "rank is 2"));
  EXPECT_TRUE(contains(messageOf<ArgumentError>([&] { Worker::join(options("a", -1, 2)); }), "rank is -1"));
  EXPECT_TRUE(contains(messageOf<ArgumentError>([&] { Worker::join(options("a", 0, 0)); }), "world size is 0"));
}

TEST_F(Join, refusesNamesThatNoWorkerMayHave) {
  for (std::string name : {std::string("a b"), std::string("ä"), std::string("a/b"), std::string(128, 'n')})
    EXPECT_TRUE(contains(messageOf<ArgumentError>([&] { Worker::join(options(name, 0, 1)); }), "'" + name + "'"));
  Worker::join(options(std::string(127, 'n'), 0, 1))->shutdown();
  Worker::join(options("A-z_0.9:", 0, 1))->shutdown();
}

TEST_F(Join, namesAWorkerByItsRankUnlessItHasAName) {
  auto first = std::async(std::launch::async, [this] { return Worker::join(options("", 0, 2)); });
  auto second = Worker::join(options("", 1, 2));
  EXPECT_EQ("worker1", second->self().name);
  EXPECT_EQ("worker0", second->peer(0).name);
  auto done = std::async(std::launch::async, [&first] { first.get()->shutdown(); });
  second->shutdown();
  done.get();
}

TEST_F(Join, refusesAddressesBeyondThisHost) {
  JoinOptions far = options("a", 0, 1);
  far.launch->masterAddress = "192.0.2.1";
  std::string why = messageOf<StateError>([&] { Worker::join(far); });
  EXPECT_TRUE(contains(why, "192.0.2.1"));
  EXPECT_TRUE(contains(why, "loopback"));
  far = options("a", 0, 1);
  far.listenAddress = "tcp://0.0.0.0:0";
  why = messageOf<StateError>([&] { Worker::join(far); });
  EXPECT_TRUE(contains(why, "tcp://0.0.0.0:0"));
  EXPECT_TRUE(contains(why, "loopback"));
  // Who wants it in clear text has to say so, and to give what a job across hosts needs.
  far = options("a", 0, 1);
  far.allowPlaintext = true;
  far.launch->masterAddress = "192.0.2.1";
  EXPECT_TRUE(contains(messageOf<StateError>([&] { Worker::join(far); }), "TREADLE_JOB_KEY"));
  far.launch->jobKey = "a key of this job";
  far.launch->masterAddress = "255.255.255.255";
  EXPECT_TRUE(contains(messageOf<StateError>([&] { Worker::join(far); }), "needs JoinOptions::listenAddress"));
  far.launch->masterAddress = "0.0.0.0";
  EXPECT_TRUE(contains(messageOf<ArgumentError>([&] { Worker::join(far); }), "leads to no host"));
  far.launch->masterAddress = "192.0.2.1";
  far.announceAddress = "tcp://203.0.113.5:4000";
  EXPECT_TRUE(contains(messageOf<ArgumentError>([&] { Worker::join(far); }), "listenAddress does not say"));
  far.announceAddress.reset();
  far.listenAddress = "tcp://0.0.0.0:0";
  EXPECT_TRUE(contains(messageOf<ArgumentError>([&] { Worker::join(far); }), "others reach"));
  far.listenAddress = "nonsense";
  EXPECT_TRUE(contains(messageOf<ArgumentError>([&] { Worker::join(far); }), "nonsense"));
}

TEST_F(Join, worksOverTcpAndOverUnixSockets) {
  for (const char* address : {"tcp://127.0.0.1:0", "unix:"}) {
    std::vector<JoinOptions> two = {options("a", 0, 2), options("b", 1, 2)};
    for (JoinOptions& one : two) {
      one.listenAddress = address;
      if (*one.listenAddress == "unix:") *one.listenAddress += "treadle-test-" + std::to_string(port) + one.name;
      one.functions.add<&add>("add");
    }
    auto other = std::async(std::launch::async, [&] { Worker::join(two[1])->shutdown(); });
    auto worker = Worker::join(two[0]);
    EXPECT_EQ(3, worker->call<&add>("b", 1, 2));
    worker->shutdown();
    other.get();
  }
}

// As where it is a part of a job across hosts.
TEST_F(Join, listensAtTheAddressThatLeadsToTheMaster) {
  const Result<io::Address> own = io::Address::towards(*io::Address::tcp("203.0.113.1", 1));
  if (!own.ok() || own->isLoopback()) GTEST_SKIP() << "this host has no address beyond the loopback";
  const test::CertificateFiles files;
  for (const bool hasCertificates : {false, true}) {
    std::vector<JoinOptions> two = {options("a", 0, 2), options("b", 1, 2)};
    for (JoinOptions& one : two) {
      one.launch->masterAddress = own->host();
      one.launch->jobKey = "a key of this job";
      if (hasCertificates) one.certificates = Certificates{files.certificate(), files.privateKey(), files.authority()};
      one.functions.add<&add>("add");
    }
    auto other = std::async(std::launch::async, [&] { Worker::join(two[1])->shutdown(); });
    auto worker = Worker::join(two[0]);
    EXPECT_EQ(3, worker->call<&add>("b", 1, 2));
    const PeerChannels channels = worker->channelsTo("b");
    EXPECT_EQ(channels.unixSockets.inUse, !hasCertificates) << channels.unixSockets.why;
    EXPECT_EQ(channels.tcp.inUse, hasCertificates) << channels.tcp.why;
    worker->shutdown();
    other.get();
  }
}

TEST_F(Join, meetsThroughAFile) {
  const std::string file = testing::TempDir() + "/treadle join " + std::to_string(port);
  std::vector<JoinOptions> two = {options("a", 0, 2), options("b", 1, 2)};
  for (JoinOptions& one : two) {
    one.launch->meetingFile = file;
    one.functions.add<&add>("add");
  }
  two[1].launch->masterPort = test::freePort();  // by the file alone they find each other
  auto other = std::async(std::launch::async, [&] { Worker::join(two[1])->shutdown(); });
  auto worker = Worker::join(two[0]);
  EXPECT_EQ(3, worker->call<&add>("b", 1, 2));
  EXPECT_NE(0, ::access(file.c_str(), F_OK)) << "all are there: it is of no more use";
  worker->shutdown();
  other.get();
}

// The others reach it through a port that leads to its own, and by no other way.
TEST_F(Join, announcesAnotherAddressThanItListensAt) {
  io::Fd announced = valueOrThrow(io::listenOn(*io::Address::tcp("127.0.0.1", 0)));
  const io::Address own = *io::Address::tcp("127.0.0.1", test::freePort());
  std::atomic<int> passed = 0;
  std::atomic<bool> over = false;
  auto forward = std::async(std::launch::async, [&] {
    std::vector<std::future<void>> passing;
    while (!over) {
      if (!io::waitFor(announced.get(), POLLIN, deadlineAfter(20ms))) continue;
      auto from = std::make_shared<io::Fd>(valueOrThrow(io::acceptFrom(announced.get())));
      auto to = std::make_shared<io::Fd>(valueOrThrow(io::connectTo(own, test::patience())));
      ++passed;
      for (auto [source, target] : {std::pair(from, to), std::pair(to, from)})
        passing.push_back(std::async(std::launch::async, [source = source, target = target] {
          std::array<std::byte, 4096> piece;
          while (io::waitFor(source->get(), POLLIN, test::patience())) {
            const ssize_t got = ::recv(source->get(), piece.data(), piece.size(), 0);
            if (got <= 0) break;
            const Bytes some = Bytes(piece).first(static_cast<size_t>(got));
            if (!io::writeAll(target->get(), some, test::patience()).ok()) break;
          }
          ::shutdown(target->get(), SHUT_WR);
        }));
    }
  });
  std::vector<JoinOptions> two = {options("a", 0, 2), options("b", 1, 2)};
  two[1].listenAddress = own.toString();
  two[1].announceAddress = valueOrThrow(io::Address::ofSocket(announced.get())).toString();
  two[1].functions.add<&add>("add");
  two[0].functions.declare<&add>("add");
  auto other = std::async(std::launch::async, [&] { Worker::join(two[1])->shutdown(); });
  auto worker = Worker::join(two[0]);
  EXPECT_EQ(3, worker->call<&add>("b", 1, 2));
  worker->shutdown();
  other.get();
  over = true;
  forward.get();
  EXPECT_EQ(1, passed) << "a's connection to b; b's own goes the short way";
}

TEST_F(Join, reachesItselfWhereWhatItAnnouncesDoesNotLeadHere) {
  JoinOptions alone = options("a", 0, 1);
  alone.announceAddress = "tcp://127.0.0.1:" + std::to_string(test::freePort());
  alone.channels = valueOrThrow(Channels::parse("tcp,lanes"));
  alone.functions.add<&test::sumOf>("sumOf");
  auto worker = Worker::join(alone);
  EXPECT_EQ(3 << 20, worker->call<&test::sumOf>("a", test::bulkOf(1 << 20, 3)));
  EXPECT_TRUE(worker->channelsTo("a").lanes.inUse) << worker->channelsTo("a").lanes.why;
  worker->shutdown();
}

TEST_F(Join, refusesToAnnounceWhatLeadsNowhere) {
  auto refused = [&](const std::string& listen, const std::string& announce) {
    JoinOptions wrong = options("a", 0, 1);
    if (!listen.empty()) wrong.listenAddress = listen;
    wrong.announceAddress = announce;
    return messageOf<Error>([&] { Worker::join(wrong); });
  };
  for (const char* none : {"unix:a", "tcp://0.0.0.0:4000", "tcp://127.0.0.1:0"})
    EXPECT_TRUE(contains(refused("", none), std::string("announceAddress is ") + none));
  EXPECT_TRUE(contains(refused("", "nonsense"), "announceAddress"));
  EXPECT_TRUE(contains(refused("unix:treadle-test-" + std::to_string(port), "tcp://127.0.0.1:4000"), "no TCP address"));
  EXPECT_TRUE(contains(refused("", "tcp://203.0.113.5:4000"), "loopback"));
}

TEST_F(Join, refusesToAnnounceWhatWouldBeEncryptedAtOneEndOnly) {
  JoinOptions wrong = options("a", 0, 1);
  wrong.launch->jobKey = "a key that both ends have";
  wrong.announceAddress = "tcp://203.0.113.5:4000";
  EXPECT_TRUE(contains(messageOf<ArgumentError>([&] { Worker::join(wrong); }), "TREADLE_TLS"));
  wrong.tls = TlsUse::kAlways;
  Worker::join(wrong)->shutdown();
}

TEST_F(Join, checksItsOptions) {
  auto refused = [&](auto change) {
    JoinOptions wrong = options("a", 0, 1);
    change(wrong);
    return messageOf<ArgumentError>([&] { Worker::join(wrong); });
  };
  EXPECT_TRUE(contains(refused([](JoinOptions& o) { o.rpcTimeout = 0s; }), "rpcTimeout"));
  EXPECT_TRUE(contains(refused([](JoinOptions& o) { o.joinTimeout = -1s; }), "joinTimeout"));
  EXPECT_TRUE(contains(refused([](JoinOptions& o) { o.heartbeatTimeout = 50ms; }), "heartbeatTimeout is 50 ms"));
  EXPECT_TRUE(contains(refused([](JoinOptions& o) { o.spinTimeout = -1ns; }), "spinTimeout"));
  EXPECT_TRUE(contains(refused([](JoinOptions& o) { o.serverSpinTimeout = 2s; }), "serverSpinTimeout"));
  EXPECT_TRUE(contains(refused([](JoinOptions& o) { o.maxConcurrentHandlers = -1; }), "maxConcurrentHandlers"));
  EXPECT_TRUE(contains(refused([](JoinOptions& o) { o.maxBlockedHandlers = 0; }), "maxBlockedHandlers"));
  for (size_t bytes : {size_t{0}, SIZE_MAX, (size_t{1} << 50) + 1})
    EXPECT_TRUE(contains(refused([&](JoinOptions& o) { o.maxInFlightBytes = bytes; }),
                         "maxInFlightBytes is " + std::to_string(bytes)));
  EXPECT_TRUE(contains(refused([](JoinOptions& o) { o.launch->masterPort = 0; }), "port"));
  EXPECT_TRUE(contains(refused([](JoinOptions& o) { o.launch->jobKey = "short"; }), "job key"));
}

TEST_F(Join, needsToKnowHowItWasLaunched) {
  for (const char* name : {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TREADLE_RANK"}) ::unsetenv(name);
  JoinOptions alone;
  alone.name = "a";
  EXPECT_TRUE(contains(messageOf<StateError>([&] { Worker::join(alone); }), "treadle run"));
}

TEST_F(Join, ofExtensionsWhoseNamesContradictTheProgramsIsRefused) {
  JoinOptions mine = options("a", 0, 1);
  mine.functions.add<&add>("plus");
  WorkerExtensions theirs;
  theirs.functions.add<&subtract>("plus");
  EXPECT_TRUE(contains(messageOf<ArgumentError>([&] { Worker::join(mine, theirs); }), "'plus'"));
}

}  // namespace
}  // namespace treadle::join_test

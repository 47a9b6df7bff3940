// Open jobs: workers come and go at run time.

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <future>
#include <map>

#include "tests/core/worker/here.h"
#include "tests/core/worker/peer_functions.h"
#include "tests/support/places.h"
#include "tests/support/readable.h"
#include "tests/support/seeds.h"
#include "treadle/core/group/group.h"
#include "treadle/core/group/group_service.h"
#include "treadle/core/io/process.h"
#include "treadle/core/io/socket.h"

namespace treadle::open_job_test {
namespace {

using namespace std::chrono_literals;
using test::contains;
using test::Counter;
using test::Gate;
using test::Here;
using test::messageOf;

int add(int a, int b) { return a + b; }
std::string makeText(const std::string& text) { return text; }
size_t lengthOf(const std::string& text) { return text.size(); }
// Keeps a reference that it was given until it is asked for it.
struct Shelf {
  Mutex mutex;
  std::map<std::string, RRef<std::string>> refs TREADLE_GUARDED_BY(mutex);
};
void keep(Here<Shelf> shelf, const std::string& key, RRef<std::string> ref) {
  MutexLock lock(shelf->mutex);
  shelf->refs.insert_or_assign(key, std::move(ref));
}
RRef<std::string> fetchKept(Here<Shelf> shelf, const std::string& key) {
  MutexLock lock(shelf->mutex);
  return shelf->refs.at(key);
}

Functions functions() {
  Functions functions = test::peerFunctions();
  functions.add<&add>("plus").add<&makeText>("makeText").add<&lengthOf>("lengthOf");
  functions.add<&keep>("keep").add<&fetchKept>("fetchKept").add<&test::waitAtGate>("waitAtGate");
  return functions;
}

class OpenJob : public testing::Test {
 protected:
  JoinOptions options(const std::string& name, bool first = false) const {
    JoinOptions options = test::joinOptions(name, 0, 1, port, functions());
    options.launch->rank = first ? 0 : kAnyRank;
    options.launch->worldSize = kOpenWorld;
    options.launch->meetingFile = meetingFile;
    return options;
  }
  std::shared_ptr<Worker> join(const std::string& name, bool first = false) const {
    return Worker::join(options(name, first));
  }
  static std::vector<std::string> namesOf(const Worker& worker) {
    std::vector<std::string> names;
    for (const WorkerInfo& peer : worker.peers()) names.push_back(peer.name);
    return names;
  }
  // All at once; in the order given.
  template <class F>
  static void onAll(const std::vector<std::shared_ptr<Worker>>& workers, F f) {
    std::vector<std::future<void>> running;
    for (const auto& worker : workers) running.push_back(std::async(std::launch::async, [&] { f(*worker); }));
    for (auto& one : running) one.get();
  }
  static void shutdown(const std::vector<std::shared_ptr<Worker>>& workers) {
    onAll(workers, [](Worker& worker) { worker.shutdown({.timeout = 60s}); });
  }

  const uint16_t port = test::freePort();
  std::string meetingFile;
};

// Those that come later get them too, also from another keeper.
TEST_F(OpenJob, givesAllWorkersTheCostsOfTheFirst) {
  auto a = join("a", true);
  const cluster::Costs costs = a->groups().costs();
  EXPECT_TRUE(isUsable(costs));
  auto b = join("b");
  EXPECT_EQ(costs, b->groups().costs());
  a->leave({.timeout = 60s});
  auto c = join("c");
  EXPECT_EQ(costs, c->groups().costs());
  shutdown({b, c});
}

TEST_F(OpenJob, beginsWithOneWorkerAndOthersCome) {
  auto a = join("a", true);
  EXPECT_EQ(1u, a->peers().size());
  EXPECT_EQ(3, a->call<&add>("a", 1, 2));
  auto b = join("b"), c = join("c");
  EXPECT_EQ(1, b->self().rank);
  EXPECT_EQ(2, c->self().rank);
  EXPECT_EQ((std::vector<std::string>{"a", "b", "c"}), namesOf(*c));
  EXPECT_EQ("c", a->waitForPeer("c", 60s).name);
  EXPECT_EQ("c", b->waitForPeer("c", 60s).name);
  for (auto* from : {&a, &b, &c})
    for (const char* to : {"a", "b", "c"}) EXPECT_EQ(5, (*from)->call<&add>(to, 2, 3));
  shutdown({a, b, c});
}

TEST_F(OpenJob, letsManyComeAtOnce) {
  constexpr int kWorkers = 8;
  std::vector<std::shared_ptr<Worker>> workers = {join("w0", true)};
  std::vector<std::future<std::shared_ptr<Worker>>> joining;
  for (int i = 1; i < kWorkers; ++i)
    joining.push_back(std::async(std::launch::async, [&, i] { return join("w" + std::to_string(i)); }));
  for (auto& one : joining) workers.push_back(one.get());
  onAll(workers, [&](Worker& worker) {
    for (int i = 0; i < kWorkers; ++i) {
      std::string name = worker.waitForPeer("w" + std::to_string(i), 60s).name;
      EXPECT_EQ(i + 1, worker.call<&add>(name, i, 1));
    }
    worker.barrier();
  });
  std::set<int> ranks;
  for (const auto& worker : workers) ranks.insert(worker->self().rank);
  EXPECT_EQ(static_cast<size_t>(kWorkers), ranks.size());
  shutdown(workers);
}

TEST_F(OpenJob, waitsForAWorkerByItsName) {
  auto a = join("a", true);
  EXPECT_TRUE(contains(messageOf<TimeoutError>([&] { a->waitForPeer("b", 20ms); }), "'b'"));
  EXPECT_TRUE(contains(messageOf<NotFoundError>([&] { a->call<&add>("b", 1, 2); }), "there are: a"));
  auto waiting = std::async(std::launch::async, [&] { return a->waitForPeer("b", 60s).rank; });
  auto b = join("b");
  EXPECT_EQ(b->self().rank, waiting.get());
  shutdown({a, b});
}

TEST_F(OpenJob, needsAName) {
  EXPECT_TRUE(contains(messageOf<ArgumentError>([&] { Worker::join(options("", true)); }), "JoinOptions::name"));
  EXPECT_TRUE(contains(messageOf<ArgumentError>([&] { Worker::join(options("")); }), "JoinOptions::name"));
}

TEST_F(OpenJob, refusesANameThatIsInUse) {
  auto a = join("a", true);
  EXPECT_TRUE(contains(messageOf<ArgumentError>([&] { join("a"); }), "'a' is used already"));
  auto b = join("b");  // the way in is free
  EXPECT_EQ(3, b->call<&add>("a", 1, 2));
  shutdown({a, b});
}

TEST_F(OpenJob, isNoJobOfAFixedSize) {
  auto a = join("a", true);
  JoinOptions fixed = test::joinOptions("b", 1, 2, port, functions());
  EXPECT_TRUE(contains(messageOf<StateError>([&] { Worker::join(fixed); }), "this job is open"));
  shutdown({a});
}

TEST_F(OpenJob, aWorkerLeavesAndTheOthersGoOn) {
  auto a = join("a", true), b = join("b"), c = join("c");
  a->waitForPeer("c", 60s);
  RRef<std::string> text = a->remote<&makeText>("b", "gone soon");
  EXPECT_EQ("gone soon", text.toHere());
  text = {};
  b->leave({.timeout = 60s});
  for (auto* one : {&a, &c})
    ASSERT_TRUE(test::eventually([&] { return namesOf(**one) == std::vector<std::string>{"a", "c"}; }));
  EXPECT_TRUE(contains(messageOf<PeerLostError>([&] { a->call<&add>(1, 1, 2); }), "has left the job"));
  EXPECT_EQ(3, a->call<&add>("c", 1, 2));
  onAll({a, c}, [](Worker& worker) { worker.barrier(); });
  auto again = join("b");  // another worker, with a rank of its own
  EXPECT_EQ(3, again->self().rank);
  a->waitForPeer("b", 60s);
  EXPECT_EQ(3, a->call<&add>("b", 1, 2));
  shutdown({a, c, again});
}

TEST_F(OpenJob, leavingWaitsForWorkAndSaysWhatIsLeft) {
  auto a = join("a", true), b = join("b");
  RRef<std::string> held = a->remote<&makeText>("b", "held by a");
  EXPECT_EQ("held by a", held.toHere());
  ASSERT_TRUE(test::eventually([&] { return b->metrics().handlersRunning == 0; }));  // they are told of first
  std::string why = messageOf<TimeoutError>([&] { b->leave({.timeout = 50ms}); });
  EXPECT_TRUE(contains(why, "referred to elsewhere (1 by 'a')"));
  Counter arrived;
  Gate gate;
  Future<void> running = a->async<&test::waitAtGate>("b", arrived, gate);
  arrived.waitFor(1);
  why = messageOf<TimeoutError>([&] { b->leave({.timeout = 50ms}); });
  EXPECT_TRUE(contains(why, "runs 1 handler ('waitAtGate' for 'a')"));
  auto leaving = std::async(std::launch::async, [&] { b->leave({.timeout = 60s}); });
  gate.open();
  running.wait();
  EXPECT_EQ(std::future_status::timeout, leaving.wait_for(50ms));  // the reference is left
  held = {};
  leaving.get();
  shutdown({a});
}

TEST_F(OpenJob, leavingIsForOpenJobs) {
  test::WorkerJob job({"a", "b"}, functions());
  EXPECT_TRUE(contains(messageOf<StateError>([&] { job[0].leave(); }), "shutdown()"));
}

// Whoever waits when one is lost is told so; those that are left can meet and end without it.
TEST_F(OpenJob, barrierAndShutdownAreAmongThoseThatAreLeft) {
  auto a = join("a", true), b = join("b");
  // How many of both were told of the loss before they met: that a barrier waits cannot be seen from outside.
  const auto lose = [&](Duration patience) {
    auto c = join("c");
    a->waitForPeer("c", 60s);
    b->waitForPeer("c", 60s);
    EXPECT_EQ(3, a->call<&add>("c", 1, 2));  // counts for nothing once c is gone
    std::atomic<int> told = 0;
    auto meeting = std::async(std::launch::async, [&] {
      onAll({a, b}, [&](Worker& worker) {
        for (bool met = false; !met;) try {
            worker.barrier();
            met = true;
          } catch (const PeerLostError& lost) {
            EXPECT_TRUE(contains(lost.what(), "'c'"));
            ++told;
          }
      });
    });
    std::this_thread::sleep_for(patience);
    c.reset();
    meeting.get();
    for (auto* one : {&a, &b}) EXPECT_TRUE(test::eventually([&] { return namesOf(**one).size() == 2; }));
    return told.load();
  };
  EXPECT_TRUE(test::withLongerLimits(10ms, [&](Duration patience) { return lose(patience) == 2; }));
  shutdown({a, b});
}

TEST_F(OpenJob, theKeeperLeavesAndAnotherLetsWorkersIn) {
  auto a = join("a", true), b = join("b"), c = join("c");
  b->waitForPeer("c", 60s);
  auto waiting = std::async(std::launch::async, [&] { b->barrier(); });
  a->leave({.timeout = 60s});
  auto d = join("d");
  EXPECT_EQ(3, d->self().rank);
  EXPECT_EQ((std::vector<std::string>{"b", "c", "d"}), namesOf(*d));
  EXPECT_TRUE(contains(messageOf<PeerLostError>([&] { d->call<&add>(0, 1, 2); }), "gone before this worker came"));
  onAll({c, d}, [](Worker& worker) { worker.barrier(); });
  waiting.get();  // it waited at the old keeper
  EXPECT_EQ(3, d->call<&add>("b", 1, 2));
  shutdown({b, c, d});
}

// The heir of the keeper leaves while it is told to take over, or has just done so.
TEST_F(OpenJob, theKeeperAndItsHeirLeaveAtOnce) {
  for (int round = 0; round < 5; ++round) {
    meetingFile = testing::TempDir() + "/treadle meeting " + std::to_string(port) + " " + std::to_string(round);
    auto a = join("a", true), b = join("b"), c = join("c"), d = join("d");
    b->waitForPeer("d", 60s);
    c->waitForPeer("d", 60s);
    onAll({a, b}, [](Worker& worker) { worker.leave({.timeout = 60s}); });
    auto e = join("e");
    EXPECT_EQ((std::vector<std::string>{"c", "d", "e"}), namesOf(*e));
    for (const char* name : {"c", "d"}) EXPECT_EQ(3, e->call<&add>(name, 1, 2));
    onAll({c, d, e}, [](Worker& worker) { worker.barrier(); });
    shutdown({c, d, e});
  }
}

// One that did not come in after all, or has gone: nobody waits for its word.
TEST_F(OpenJob, aRankThatNobodyHasHoldsNothingUp) {
  auto a = join("a", true);
  for (int i = 0; i < 3; ++i) {
    JoinOptions lost = options("lost");
    lost.listenAddress = "unix:" + std::string(200, 'x');  // fails once it has a rank
    messageOf<ArgumentError>([&] { Worker::join(lost); });
  }
  auto b = join("b");
  onAll({a, b}, [](Worker& worker) { worker.barrier(); });
  EXPECT_EQ(3, b->call<&add>("a", 1, 2));
  onAll({a, b}, [](Worker& worker) { EXPECT_EQ(2u, worker.allGather(1).size()); });
  shutdown({a, b});
}

// A name may be used again: a group is of those that have its names when it is made.
TEST_F(OpenJob, aGroupIsOfTheWorkersThatAreThere) {
  auto a = join("a", true), b = join("b");
  const auto sumOf = [&](const std::shared_ptr<Worker>& one, const std::shared_ptr<Worker>& other) {
    std::vector<float> sums;
    for (const auto& worker : {one, other}) sums.push_back(static_cast<float>(worker->self().rank) + 1);
    onAll({one, other}, [&](Worker& worker) {
      float& own = sums[worker.self().name == "a" ? 0 : 1];
      allReduce(ProcessGroup::make(worker, {"a", "b"}), std::span(&own, 1)).wait();
    });
    EXPECT_EQ(sums[0], sums[1]);
    return sums[0];
  };
  EXPECT_EQ(1.0F + 2.0F, sumOf(a, b));
  b->leave({.timeout = 60s});
  auto again = join("b");
  a->waitForPeer("b", 60s);
  EXPECT_EQ(1.0F + 3.0F, sumOf(a, again));
  shutdown({a, again});
}

TEST_F(OpenJob, aReferenceToAWorkerThatHadGoneBeforeFailsWithItsRank) {
  auto a = join("a", true), b = join("b");
  Shelf shelf;
  b->call<&keep>("a", shelf, "x", b->makeRRef(std::string("of b")));
  b.reset();
  ASSERT_TRUE(test::eventually([&] { return namesOf(*a).size() == 1; }));
  auto c = join("c");
  RRef<std::string> ref = c->call<&fetchKept>("a", shelf, "x");
  EXPECT_TRUE(contains(messageOf<PeerLostError>([&] { (void)ref.toHere(); }), "rank 1"));
  {
    MutexLock lock(shelf.mutex);
    shelf.refs.clear();
  }
  ref = {};
  shutdown({a, c});
}

// Values of workers that come later travel through third ones like all others.
TEST_F(OpenJob, referencesGoToNewcomers) {
  auto a = join("a", true), b = join("b");
  Shelf shelf;
  b->call<&keep>("a", shelf, "x", b->makeRRef(std::string("seven..")));
  auto c = join("c");
  RRef<std::string> ref = c->call<&fetchKept>("a", shelf, "x");
  EXPECT_EQ("seven..", ref.toHere());
  b->waitForPeer("c", 60s);
  EXPECT_EQ(7u, a->call<&lengthOf>("c", ref.toHere()));
  {
    MutexLock lock(shelf.mutex);
    shelf.refs.clear();
  }
  ref = {};
  ASSERT_TRUE(test::eventuallyReleased([&] { return b->metrics().valuesOwned == 0; }));
  shutdown({a, b, c});
}

TEST_F(OpenJob, allGatherGivesAllWhatEachGave) {
  auto a = join("a", true), b = join("b"), c = join("c");
  a->waitForPeer("c", 60s);
  b->waitForPeer("c", 60s);
  onAll({a, b, c}, [](Worker& worker) {
    for (int round = 0; round < 100; ++round) {
      auto all = worker.allGather(std::pair(worker.self().name, round));
      ASSERT_EQ(3u, all.size());
      for (const auto& [name, value] : all) EXPECT_EQ(std::pair(name, round), value);
    }
  });
  EXPECT_TRUE(contains(messageOf<ResourceError>([&] { a->allGather(std::string(65'536, 'x')); }), "too large"));
  EXPECT_TRUE(contains(messageOf<ArgumentError>([&] { a->allGather(a->makeRRef(1)); }), "no references"));
  std::vector<std::future<void>> mixed;
  auto isRefused = [](const std::string& why) { return contains(why, "where others called allGather()"); };
  mixed.push_back(
      std::async(std::launch::async, [&] { EXPECT_TRUE(isRefused(messageOf<ArgumentError>([&] { a->barrier(); }))); }));
  for (auto* one : {&b, &c})
    mixed.push_back(std::async(std::launch::async, [&, one] {
      EXPECT_TRUE(isRefused(messageOf<ArgumentError>([&] { (*one)->allGather(1); })));
    }));
  for (auto& one : mixed) one.get();
  shutdown({a, b, c});
}

TEST_F(OpenJob, meetsThroughAFile) {
  meetingFile = testing::TempDir() + "/treadle meeting " + std::to_string(port);
  std::ofstream(meetingFile) << "treadle tcp://127.0.0.1:1\n";  // left behind by a job before
  auto joining = std::async(std::launch::async, [&] { return join("b"); });
  auto a = join("a", true);
  auto b = joining.get();
  EXPECT_EQ(3, b->call<&add>("a", 1, 2));
  a->leave({.timeout = 60s});
  auto c = join("c");
  EXPECT_EQ(3, c->call<&add>("b", 1, 2));
  shutdown({b, c});
  EXPECT_FALSE(std::filesystem::exists(meetingFile));
}

// A worker in a process of its own.
class OpenPeers : public OpenJob {
 protected:
  io::Process startPeer(const std::string& name, Duration heartbeatTimeout) const {
    io::ProcessOptions options;
    options.program = test::testProgram("core_worker_open_peer_program");
    options.arguments = {name, std::to_string(port), std::to_string(heartbeatTimeout / 1ms)};
    return valueOrThrow(io::Process::start(options));
  }
  static std::string outputOf(io::Process& process) { return test::readToEnd(process.standardOutput().get()); }
};

TEST_F(OpenPeers, aKilledWorkerIsOutForAllAtOnce) {
  auto a = join("a", true), b = join("b");
  io::Process child = startPeer("child", 60s);
  b->waitForPeer("child", 60s);
  a->waitForPeer("child", 60s);
  RRef<int> held = a->remote<&test::peerAdd>("child", 1, 2);
  EXPECT_EQ(3, held.toHere());
  child.signal(SIGKILL);
  for (auto* one : {&a, &b})
    EXPECT_TRUE(contains(messageOf<PeerLostError>([&] { (*one)->call<&test::peerWait>("child"); }), "'child'"));
  EXPECT_TRUE(contains(messageOf<PeerLostError>([&] { (void)held.toHere(); }), "'child'"));
  onAll({a, b}, [](Worker& worker) { worker.barrier(); });
  shutdown({a, b});
}

// To b the child would be lost later; that it is for a is enough, and the child hears of it when it wakes.
TEST_F(OpenPeers, aStoppedWorkerIsOutForAllAndLearnsItWhenItWakes) {
  JoinOptions impatient = options("a", true), patient = options("b");
  // Each worker sends five heartbeats in its own limit, so each limit exceeds the peers' interval by 4 s.
  impatient.heartbeatTimeout = 6s;
  patient.heartbeatTimeout = 10s;
  auto a = Worker::join(impatient), b = Worker::join(patient);
  io::Process child = startPeer("child", 8s);
  a->waitForPeer("child", 60s);
  b->waitForPeer("child", 60s);
  b->call<&test::peerKeep>("child", b->makeRRef(std::string("of b")));
  EXPECT_EQ(1u, b->metrics().valuesOwned);
  EXPECT_EQ(4u, b->call<&test::peerSize>("child", test::bulkOf(4, 0)));
  child.signal(SIGSTOP);
  for (auto* one : {&a, &b}) ASSERT_TRUE(test::eventually([&] { return namesOf(**one).size() == 2; }));
  EXPECT_TRUE(contains(messageOf<PeerLostError>([&] { b->call<&test::peerAdd>(2, 1, 2); }), "nothing was heard of it"));
  EXPECT_TRUE(test::eventuallyReleased([&] { return b->metrics().valuesOwned == 0; })) << "once and for all";
  child.signal(SIGCONT);
  EXPECT_TRUE(contains(outputOf(child), "has given it up"));
  // Its place is free.
  io::Process next = startPeer("child", 8s);
  b->waitForPeer("child", 60s);
  EXPECT_EQ(3, b->call<&test::peerAdd>("child", 1, 2));
  a->waitForPeer("child", 60s);
  shutdown({a, b});
  EXPECT_EQ("", outputOf(next));
}

// Workers come, go and die in any order, and those that live always reach each other.
TEST_F(OpenJob, comingAndGoingInAnyOrder) {
  test::forSeeds(5, [](test::Random& random) {
    struct Fresh : OpenJob {
      void TestBody() override {}
      using OpenJob::join;
      using OpenJob::onAll;
    } job;
    std::vector<std::shared_ptr<Worker>> workers = {job.join("w0", true)};
    for (int i = 1; i <= 15; ++i) {
      if (workers.size() > 1 && test::pick(random, 2) == 0) {
        auto chosen = workers.begin() + static_cast<ptrdiff_t>(test::pick(random, workers.size()));
        bool keeper = chosen == workers.begin();
        if (keeper || test::pick(random, 2) == 0) (*chosen)->leave({.timeout = 60s});
        workers.erase(chosen);
      }
      workers.push_back(job.join("w" + std::to_string(i)));
      std::set<std::string> names;
      for (const auto& one : workers) names.insert(one->self().name);
      job.onAll(workers, [&](Worker& worker) {
        for (const std::string& name : names) {
          worker.waitForPeer(name, 60s);
          EXPECT_EQ(3, worker.call<&add>(name, 1, 2));
        }
      });
    }
    job.onAll(workers, [](Worker& worker) { worker.shutdown({.timeout = 60s}); });
  });
}

}  // namespace
}  // namespace treadle::open_job_test

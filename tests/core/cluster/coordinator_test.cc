#include "treadle/core/cluster/coordinator.h"

#include <future>

#include "tests/core/cluster/recording_handler.h"
#include "tests/support/local_job.h"

namespace treadle::cluster::coordinator_test {
namespace {

using namespace std::chrono_literals;
using test::LocalJob;
using test::LocalWorker;

// Counts what comes for a coordinator.
struct Counted final : MessageHandler {
  explicit Counted(Coordinator& coordinator) : to(coordinator) {}
  void onMessage(int rank, const std::shared_ptr<link::Connection>& from, link::Message message) override {
    ++messages;
    to.onMessage(rank, from, std::move(message));
  }
  void onLost(int rank, const Status& why) override { to.onLost(rank, why); }

  Coordinator& to;
  std::atomic<int> messages = 0;
};

// A job whose workers' work is what the test says.
class Job {
 public:
  explicit Job(int size, bool open = false, int servers = 0) : work_(static_cast<size_t>(size), WorkCount{0, 0, true}) {
    test::LocalJobOptions options;
    options.membership.open = open;
    options.membership.servers = servers;
    const auto addHandlers = [this, size, open](LocalWorker& worker) {
      for (int peer = 0; open && peer < size; ++peer) worker.membership->expect({LocalJob::nameOf(peer), peer});
      int rank = worker.membership->self().rank;
      coordinators.push_back(
          std::make_unique<Coordinator>(*worker.membership, *worker.reactor, [this, rank] { return workOf(rank); }));
      counted.push_back(std::make_unique<Counted>(*coordinators.back()));
      worker.membership->setHandler(link::Subject::kCluster, *counted.back());
    };
    local = std::make_unique<LocalJob>(size, addHandlers, options);
    for (int rank = 0; open && rank < size; ++rank)
      for (int peer = 0; peer < size; ++peer) local->worker(rank).membership->welcome(peer);
  }
  ~Job() { local.reset(); }

  Coordinator& at(int rank) { return *coordinators[static_cast<size_t>(rank)]; }
  WorkCount workOf(int rank) const {
    MutexLock lock(mutex_);
    return work_[static_cast<size_t>(rank)];
  }
  void setWork(int rank, WorkCount count) {
    {
      MutexLock lock(mutex_);
      work_[static_cast<size_t>(rank)] = count;
    }
    at(rank).workDone();
  }
  // `f(rank)` on a thread per worker; the results.
  std::vector<Status> onAll(const std::function<Status(int)>& f) {
    std::vector<Status> results(coordinators.size());
    std::vector<std::thread> threads;
    for (int rank = 0; rank < local->size(); ++rank)
      threads.emplace_back([&, rank] { results[static_cast<size_t>(rank)] = f(rank); });
    for (std::thread& thread : threads) thread.join();
    return results;
  }

  std::vector<std::unique_ptr<Coordinator>> coordinators;
  std::vector<std::unique_ptr<Counted>> counted;
  std::unique_ptr<LocalJob> local;

 private:
  mutable Mutex mutex_;
  std::vector<WorkCount> work_;
};

void expectAllOk(const std::vector<Status>& results) {
  for (const Status& status : results) EXPECT_TRUE(status.ok()) << status.toString();
}

TEST(Barrier, letsNobodyThroughBeforeAllAreThere) {
  constexpr int kRounds = 50;
  Job job(4);
  std::vector<std::atomic<int>> entered(kRounds);
  expectAllOk(job.onAll([&](int rank) {
    for (auto& count : entered) {
      ++count;
      TREADLE_RETURN_IF_ERROR(job.at(rank).barrier(deadlineAfter(60s)));
      EXPECT_EQ(4, count.load());
    }
    return Status();
  }));
}

TEST(Barrier, endsAtItsDeadlineAndNamesALostWorker) {
  Job job(2);
  EXPECT_EQ(Code::kDeadlineExceeded, job.at(0).barrier(Clock::now() + 20ms).code());
  std::thread waiting([&] {
    Status status = job.at(0).barrier(deadlineAfter(60s));
    EXPECT_EQ(Code::kPeerLost, status.code());
    EXPECT_EQ("w1", status.worker());
    EXPECT_NE(std::string::npos, status.message().find("the barrier")) << status.message();
  });
  job.local->kill(1);
  waiting.join();
}

TEST(Shutdown, endsForAllOnceAllAreInIt) {
  Job job(3);
  expectAllOk(job.onAll([&](int rank) { return job.at(rank).shutdown(deadlineAfter(60s)); }));
  // The job is over: that a peer goes now is no loss.
  job.local->kill(1);
  EXPECT_TRUE(job.local->worker(0).membership->firstLoss().ok());
  EXPECT_TRUE(job.at(0).shutdown(kNever).ok());  // once more is nothing new
}

TEST(Shutdown, waitsForWorkThatIsUnderWayAnywhere) {
  Job job(3);
  job.setWork(1, {1, 0, false});  // it awaits an answer of worker 2
  job.setWork(2, {0, 0, false});
  std::atomic<int> ended = 0;
  std::vector<Status> results;
  std::thread all([&] {
    results = job.onAll([&](int rank) {
      Status status = job.at(rank).shutdown(deadlineAfter(60s));
      ++ended;
      return status;
    });
  });
  job.setWork(2, {0, 1, true});
  job.setWork(2, {0, 1, true});
  EXPECT_EQ(0, ended.load());
  job.setWork(1, {1, 0, true});
  all.join();
  expectAllOk(results);
}

// A server sits in its shutdown while others call it: that costs no message for each call.
TEST(Shutdown, saysNothingWhileThereIsWorkEveryNowAndThen) {
  Job job(2);
  std::thread server([&] { EXPECT_TRUE(job.at(1).shutdown(deadlineAfter(60s)).ok()); });
  ASSERT_TRUE(test::eventually([&] { return job.counted[0]->messages == 1; }));  // idle, as it enters
  constexpr uint64_t kCalls = 10'000;
  for (uint64_t i = 1; i <= kCalls; ++i) {
    job.setWork(0, {i, 0, false});
    job.setWork(1, {0, i, true});
  }
  // A worker reports after 10 ms without work; a busy machine may cause some such reports.
  EXPECT_LT(job.counted[0]->messages, static_cast<int>(kCalls / 10));
  job.setWork(0, {kCalls, 0, true});
  EXPECT_TRUE(job.at(0).shutdown(deadlineAfter(60s)).ok());
  server.join();
}

TEST(Shutdown, tellsAtItsDeadlineWhatIsLeft) {
  Job job(3);
  Status alone = job.at(0).shutdown(Clock::now() + 50ms);
  EXPECT_EQ(Code::kDeadlineExceeded, alone.code());
  EXPECT_NE(std::string::npos, alone.message().find("w1, w2")) << alone.message();
  // It may be tried again.
  expectAllOk(job.onAll([&](int rank) { return job.at(rank).shutdown(deadlineAfter(60s)); }));
}

TEST(Shutdown, namesAWorkerThatIsLostMeanwhile) {
  Job job(3);
  std::thread killer;
  auto results = job.onAll([&](int rank) {
    if (rank == 1) return job.local->kill(1), Status();
    return job.at(rank).shutdown(deadlineAfter(60s));
  });
  for (int rank : {0, 2}) {
    EXPECT_EQ(Code::kPeerLost, results[static_cast<size_t>(rank)].code());
    EXPECT_EQ("w1", results[static_cast<size_t>(rank)].worker());
  }
}

// One verdict, by rank 0: else the shutdown would count different workers. Servers are ranks 3 and 4.
void expectToGoOnWithoutServer4(Job& job) {
  const auto hasLost = [&](int rank, int lost) { return job.local->worker(rank).membership->lossOf(lost).has_value(); };
  for (int rank = 0; rank < 4; ++rank) EXPECT_TRUE(test::eventually([&] { return hasLost(rank, 4); })) << rank;
  EXPECT_TRUE(test::eventually([&] { return hasLost(4, 0) && hasLost(4, 2); })) << "it is out of its job";
  expectAllOk(job.onAll([&](int rank) {
    if (rank == 4) return Status();
    EXPECT_TRUE(job.local->worker(rank).membership->firstLoss().ok());
    if (rank < 3) TREADLE_RETURN_IF_ERROR(job.at(rank).barrier(deadlineAfter(60s)));
    return job.at(rank).shutdown(deadlineAfter(60s));
  }));
}

TEST(Coordinator, goesOnForAllWithoutAServerThatOneWorkerHasLost) {
  Job job(5, /*open=*/false, /*servers=*/2);
  job.local->worker(1).membership->lose(4, peerLost("", "it does not answer"));
  expectToGoOnWithoutServer4(job);
}

TEST(Coordinator, goesOnForAllWithoutAServerThatHasLostAWorker) {
  Job job(5, /*open=*/false, /*servers=*/2);
  job.local->worker(4).membership->lose(1, peerLost("", "it does not answer"));
  expectToGoOnWithoutServer4(job);
}

// A worker whose network is broken would have all others expelled.
TEST(Coordinator, leavesOtherWorkersOfAFixedSizeInTheirJob) {
  Job job(4, /*open=*/false, /*servers=*/1);
  for (const int from : {1, 3}) {
    job.local->worker(from)
        .membership
        ->send(0, link::Subject::kCluster, encodeSuspect(2, peerLost("", "it is silent")), {}, link::SendMode::kUrgent,
               kNever)
        .ignore();
  }
  expectAllOk(job.onAll([&](int rank) { return rank < 3 ? job.at(rank).barrier(deadlineAfter(60s)) : Status(); }));
  EXPECT_FALSE(job.local->worker(0).membership->lossOf(2).has_value());
}

// Whoever waits when its own worker goes hears so, and so does who comes after.
TEST(Coordinator, endsEveryWaitWhenItIsClosed) {
  Job job(2);
  std::thread barrier([&] { EXPECT_EQ(Code::kCancelled, job.at(0).barrier(deadlineAfter(60s)).code()); });
  std::thread shutdown([&] { EXPECT_EQ(Code::kCancelled, job.at(1).shutdown(deadlineAfter(60s)).code()); });
  job.at(0).close(cancelled("this worker has left the job"));
  job.at(1).close(cancelled("this worker has left the job"));
  barrier.join();
  shutdown.join();
  EXPECT_EQ(Code::kCancelled, job.at(0).barrier(kNever).code());
}

TEST(Coordinator, takesOverWhenTheKeeperSaysSoAndNotWithoutItsWord) {
  Job job(3, true);
  job.at(0).keeper().begin(true);
  std::promise<std::thread> heir;
  std::optional<bool> took;
  job.at(1).setHooks({[](const RosterEntry&) {},
                      [&](int nextRank) {
                        EXPECT_EQ(3, nextRank);
                        heir.set_value(std::thread([&] {
                          job.at(1).beginTakingOver();
                          took = job.at(1).tookOver();
                        }));
                      }});
  job.at(0).handOver(3);
  auto heirs = heir.get_future();
  ASSERT_TRUE(test::eventually([&] { return heirs.wait_for(0s) == std::future_status::ready; }));
  heirs.get().join();
  EXPECT_TRUE(took.value_or(false));
  EXPECT_FALSE(job.at(0).keeper().active());
  // The next one is not asked by it, and finds it dead: it is no keeper.
  job.local->kill(1);
  job.at(2).setKeeper(1);
  job.at(2).beginTakingOver();
  EXPECT_FALSE(job.at(2).tookOver());
  EXPECT_FALSE(job.at(2).keeper().active());
}

TEST(Coordinator, dropsAPeerThatTalksNonsense) {
  Job job(3);
  Membership& hostile = *job.local->worker(2).membership;
  auto say = [&](std::vector<int> bytes) {
    std::vector<std::byte> payload;
    for (int byte : bytes) payload.push_back(static_cast<std::byte>(byte));
    hostile.send(1, link::Subject::kCluster, payload, {}, link::SendMode::kUrgent, kNever).ignore();
  };
  say({1, 2});  // cut short
  ASSERT_TRUE(test::eventually([&] { return !job.local->worker(1).membership->firstLoss().ok(); }));
  Status loss = job.local->worker(1).membership->firstLoss();
  EXPECT_EQ("w2", loss.worker());
  EXPECT_NE(std::string::npos, loss.message().find("a message of the cluster")) << loss.message();
}

// Only rank 0 says that the job is over.
TEST(Coordinator, believesTheFinishOfRankZeroAlone) {
  Job job(3);
  auto finish = encodePlain(ClusterKind::kFinish);
  ASSERT_TRUE(job.local->worker(2)
                  .membership->send(1, link::Subject::kCluster, finish, {}, link::SendMode::kUrgent, kNever)
                  .ok());
  ASSERT_TRUE(test::eventually([&] { return !job.local->worker(1).membership->firstLoss().ok(); }));
  EXPECT_FALSE(job.at(1).shutdown(Clock::now() + 10ms).ok());
}

}  // namespace
}  // namespace treadle::cluster::coordinator_test

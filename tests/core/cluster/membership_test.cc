#include "treadle/core/cluster/membership.h"

#include <sys/ioctl.h>

#include <thread>

#include "tests/core/cluster/recording_handler.h"
#include "tests/support/local_job.h"
#include "tests/support/reactor_thread.h"
#include "tests/support/readable.h"
#include "treadle/core/cluster/cluster_messages.h"
#include "treadle/core/io/socket.h"

namespace treadle::cluster::membership_test {
namespace {

using namespace std::chrono_literals;
using link::Connection;
using link::SendMode;
using link::Subject;
using test::LocalJob;
using test::LocalWorker;

// Workers that know each other, and what each was told.
struct Job {
  explicit Job(int size) : handlers(static_cast<size_t>(size)) {
    auto next = handlers.begin();
    local = std::make_unique<LocalJob>(
        size, [&](LocalWorker& worker) { worker.membership->setHandler(Subject::kRpc, *next++); });
  }
  Membership& at(int rank) { return *local->worker(rank).membership; }
  RecordingHandler& handler(int rank) { return handlers[static_cast<size_t>(rank)]; }

  std::vector<RecordingHandler> handlers;
  std::unique_ptr<LocalJob> local;
};

Status sendTo(Membership& from, int rank, std::string_view text) {
  return from.send(rank, Subject::kRpc, std::as_bytes(std::span(text)), {}, SendMode::kCapture, deadlineAfter(60s));
}

TEST(Membership, knowsItsMembersByRankAndName) {
  Job job(3);
  EXPECT_EQ(3, job.at(1).worldSize());
  EXPECT_EQ((WorkerInfo{"w1", 1}), job.at(1).self());
  EXPECT_EQ((WorkerInfo{"w2", 2}), job.at(1).info(2));
  EXPECT_EQ(0, *job.at(1).rankOf("w0"));
  Status unknown = job.at(1).rankOf("nobody").status();
  EXPECT_EQ(Code::kNotFound, unknown.code());
  EXPECT_EQ("no worker is called 'nobody'; there are: w0, w1, w2", unknown.message());
  for (int rank : {-1, 3}) EXPECT_EQ(Code::kNotFound, sendTo(job.at(1), rank, "x").code());
}

TEST(Membership, carriesMessagesBetweenAnyTwoAndToItself) {
  Job job(3);
  for (RecordingHandler& handler : job.handlers)
    handler.answer = [](int, Connection& from, const link::Message& message) {
      // The answer goes on the connection that the message came on; nobody answers an answer.
      if (message.payload.size() > 1) return;
      EXPECT_TRUE(from.send(Subject::kRpc, std::vector<std::byte>(2), {}, SendMode::kUrgent, kNever).ok());
    };
  for (int from = 0; from < 3; ++from)
    for (int to = 0; to < 3; ++to) {
      (*job.at(from).outgoing(to))->awaitAnswer(false);
      ASSERT_TRUE(sendTo(job.at(from), to, "x").ok());
    }
  for (RecordingHandler& handler : job.handlers) {
    handler.arrived.waitFor(6);
    std::vector<int> questions(3), answers(3);
    for (auto& [rank, message] : handler.messages())
      ++(message.payload.size() == 1 ? questions : answers)[static_cast<size_t>(rank)];
    EXPECT_EQ((std::vector<int>{1, 1, 1}), questions);
    EXPECT_EQ((std::vector<int>{1, 1, 1}), answers);
  }
}

TEST(Membership, tellsOnceThatAMemberIsLostAndFailsWithItsNameFromThenOn) {
  Job job(3);
  job.local->kill(1);
  for (int rank : {0, 2}) {
    job.handler(rank).lost.waitFor(1);
    auto [lost, why] = job.handler(rank).losses().at(0);
    EXPECT_EQ(1, lost);
    EXPECT_EQ(Code::kPeerLost, why.code());
    EXPECT_EQ("w1", why.worker());
    EXPECT_NE(std::string::npos, why.message().find("worker 'w1' (rank 1) was lost"));
    Status later = sendTo(job.at(rank), 1, "x");
    EXPECT_EQ(why.toString(), later.toString());
    EXPECT_EQ("w1", job.at(rank).firstLoss().worker());
  }
  EXPECT_TRUE(sendTo(job.at(0), 2, "the others go on").ok());
  job.handler(2).arrived.waitFor(1);
  EXPECT_EQ(1, job.handler(0).lost.count());
}

TEST(Membership, keepsTheFirstLossAsTheCauseOfTheOthers) {
  Job job(3);
  EXPECT_TRUE(job.at(0).firstLoss().ok());
  job.local->kill(2);
  job.handler(0).lost.waitFor(1);
  job.local->kill(1);
  job.handler(0).lost.waitFor(2);
  EXPECT_EQ("w2", job.at(0).firstLoss().worker());
}

TEST(Membership, takesALossThatAPeerReportsForTheFirst) {
  Job job(3);
  job.at(0).noteReported(2, deadlineExceeded("w1 was slow"));
  job.at(0).noteReported(2, peerLost("w0", "'w2' has lost this very worker"));
  job.at(0).noteReported(2, peerLost("w2", "its function says so of its own worker"));
  job.at(0).noteReported(2, peerLost("printer", "no worker of the job"));
  EXPECT_TRUE(job.at(0).firstLoss().ok());
  job.at(0).noteReported(2, peerLost("w1", "'work' on worker 'w2' (rank 2): worker 'w1' (rank 1) was lost"));
  EXPECT_EQ("w1", job.at(0).firstLoss().worker());
  EXPECT_TRUE(sendTo(job.at(0), 1, "it is lost to w2 and not to w0").ok());
  job.local->kill(2);
  job.handler(0).lost.waitFor(1);
  EXPECT_EQ("w1", job.at(0).firstLoss().worker());
}

// Before that it may be a consequence of what keeps the job from starting.
TEST(Membership, logsALossWhenTheWatchHasBegun) {
  Job job(3);
  testing::internal::CaptureStderr();
  job.local->kill(1);
  job.handler(0).lost.waitFor(1);
  EXPECT_EQ("", testing::internal::GetCapturedStderr());
  testing::internal::CaptureStderr();
  job.at(0).startWatch();
  job.local->kill(2);
  job.handler(0).lost.waitFor(2);
  const std::string log = testing::internal::GetCapturedStderr();
  for (const char* line : {"warning w0: worker 'w1' (rank 1) was lost", "warning w0: worker 'w2' (rank 2) was lost"})
    EXPECT_NE(std::string::npos, log.find(line)) << log;
  EXPECT_EQ(2, std::count(log.begin(), log.end(), '\n')) << log;
}

TEST(Membership, passesOnTheReasonOfAFarewell) {
  Job job(2);
  job.at(1).close("its disk is full", deadlineAfter(60s));
  job.handler(0).lost.waitFor(1);
  EXPECT_EQ("worker 'w1' (rank 1) left the job: its disk is full", job.handler(0).losses().at(0).second.message());
  EXPECT_EQ(0, job.handler(1).lost.count());  // who leaves has not lost the others
}

TEST(Membership, countsNobodyAsLostWhoLeavesAJobThatIsOver) {
  Job job(2);
  job.at(1).close("", deadlineAfter(60s));
  job.handler(0).lost.waitFor(1);  // a call that waits for it must end
  EXPECT_NE(std::string::npos, job.handler(0).losses().at(0).second.message().find("has left: the job is over"));
  EXPECT_NE(std::string::npos, sendTo(job.at(0), 1, "x").message().find("has left: the job is over"));
  EXPECT_TRUE(job.at(0).firstLoss().ok());
}

// ---- members made by hand: who polls, and when, is up to the test

// With a pool a member shares memory.
MembershipOptions optionsOf(Duration heartbeatTimeout, memory::BlockPool* pool) {
  MembershipOptions options{.heartbeatTimeout = heartbeatTimeout, .connection = {}};
  options.connection.pool = pool;
  if (pool != nullptr) options.lendLimitBytes = pool->limitBytes();
  return options;
}

struct Member {
  Member(const std::string& name, int rank, int worldSize, Duration heartbeatTimeout, memory::BlockPool* pool = nullptr)
      : reactor(valueOrThrow(io::Reactor::make())),
        membership(std::make_unique<Membership>(*reactor, WorkerInfo{name, rank}, worldSize,
                                                optionsOf(heartbeatTimeout, pool))) {
    membership->setHandler(Subject::kRpc, handler);
  }
  void pollUntil(TimePoint end) {
    bool over = false;
    reactor->at(end, [&] { over = true; });
    while (!over) reactor->poll();
  }
  void pollUntilALoss() {
    ASSERT_TRUE(test::polledUntil(*reactor, [&] { return handler.lost.count() > 0; }));
  }

  RecordingHandler handler;
  std::unique_ptr<io::Reactor> reactor;
  std::unique_ptr<Membership> membership;
};

void connect(Member& from, Member& to) {
  auto [calls, serving] = socketPair();
  ASSERT_TRUE(from.membership->attach(to.membership->self(), std::move(calls), Connection::Kind::kCalls).ok());
  ASSERT_TRUE(to.membership->attach(from.membership->self(), std::move(serving), Connection::Kind::kServing).ok());
}

void connectBothWays(Member& a, Member& b) {
  connect(a, b);
  connect(b, a);
}

TEST(MembershipFinish, nobodyIsLostAfterItButCallsHearThatAPeerHasGone) {
  Member a("a", 0, 2, 60s);
  RecordingHandler cluster;
  a.membership->setHandler(Subject::kCluster, cluster);
  {
    Member b("b", 1, 2, 60s);
    connectBothWays(a, b);
    a.membership->finish();
  }
  a.pollUntilALoss();
  EXPECT_FALSE(sendTo(*a.membership, 1, "x").ok());
  EXPECT_EQ(0, cluster.lost.count());
  EXPECT_TRUE(a.membership->firstLoss().ok());
}

// Who wakes may read the end of either connection first.
TEST(MembershipLoss, isToldToWhoIsGivenUpOnBothConnections) {
  Member a("a", 0, 2, 60s);
  auto [calls, itsServing] = socketPair();
  auto [serving, itsCalls] = socketPair();
  ASSERT_TRUE(a.membership->attach({"b", 1}, std::move(calls), Connection::Kind::kCalls).ok());
  ASSERT_TRUE(a.membership->attach({"b", 1}, std::move(serving), Connection::Kind::kServing).ok());
  const Status why = deadlineExceeded("nothing was heard of it");
  a.membership->lose(1, why);
  const std::vector<std::byte> out = encodeOut(1, why);
  const std::string word(reinterpret_cast<const char*>(out.data()), out.size());
  for (const io::Fd* socket : {&itsServing, &itsCalls})
    EXPECT_NE(std::string::npos, test::readToEnd(socket->get()).find(word));
}

// What a peer sends is wrong, and a thread that waits for its answer reads it. That thread is held up while it closes
// the connection, by a message whose tensor will never come. Meanwhile the peer ends its other connection, and the
// reactor's thread notices.
TEST(MembershipLoss, hasTheReasonOfTheConnectionThatWasClosedFirst) {
  Member a("a", 0, 2, 60s);
  auto [calls, itsServing] = socketPair();
  auto [serving, itsCalls] = socketPair();
  ASSERT_TRUE(a.membership->attach({"b", 1}, std::move(calls), Connection::Kind::kCalls).ok());
  ASSERT_TRUE(a.membership->attach({"b", 1}, std::move(serving), Connection::Kind::kServing).ok());
  test::Gate closing, goesOn;
  a.handler.answer = [&](int, Connection&, const link::Message& message) {
    ASSERT_NE(nullptr, message.arrival);
    message.arrival->whenWhole([&](const Status& why) {
      EXPECT_FALSE(why.ok());
      closing.open();
      goesOn.wait();
    });
  };
  std::thread reader([connection = valueOrThrow(a.membership->outgoing(1))] {
    connection->awaitAnswer(true);
    connection->readUntil([] { return false; }, test::patience());
  });
  const wire::BufferEntry neverComes{1U << 20, wire::Place::kOnLanes, 1};
  std::vector<std::byte> bytes =
      wire::frameFront(wire::FrameKind::kMessage, static_cast<uint8_t>(Subject::kRpc), {}, {&neverComes, 1});
  const std::vector<std::byte> wrong = wire::frameFront(wire::FrameKind::kHandshake, 0, {}, {});
  bytes.insert(bytes.end(), wrong.begin(), wrong.end());
  EXPECT_TRUE(io::writeAll(itsServing.get(), bytes, test::patience()).ok());
  closing.wait();
  itsCalls = io::Fd();
  a.pollUntilALoss();
  goesOn.open();
  reader.join();
  ASSERT_EQ(1, a.handler.lost.count());
  EXPECT_EQ("worker 'b' (rank 1) was lost: it sent a handshake after the handshake",
            a.handler.losses().at(0).second.message());
  EXPECT_EQ(Code::kDataLoss, a.membership->lossOf(1)->cause.code());
}

TEST(MembershipAttach, refusesASecondConnectionOfARankAndKeepsTheFirst) {
  Member a("a", 0, 2, 60s), b("b", 1, 2, 60s);
  connectBothWays(a, b);
  for (auto kind : {Connection::Kind::kCalls, Connection::Kind::kServing}) {
    auto [mine, theirs] = socketPair();
    EXPECT_EQ(Code::kFailedPrecondition, a.membership->attach({"b", 1}, std::move(mine), kind).code());
    // It is of no consequence what comes on that one, nor that it goes.
    auto frame = wire::frameFront(wire::FrameKind::kMessage, static_cast<uint8_t>(Subject::kRpc), {}, {});
    io::writeAll(theirs.get(), frame, Clock::now()).ignore();
  }
  a.pollUntil(Clock::now() + 20ms);
  EXPECT_EQ(0, a.handler.arrived.count());
  EXPECT_EQ(0, a.handler.lost.count());
  ASSERT_TRUE(sendTo(*b.membership, 0, "x").ok());
  ASSERT_TRUE(test::polledUntil(*a.reactor, [&] { return a.handler.arrived.count() > 0; }));
  EXPECT_EQ(1, a.handler.arrived.count());
}

TEST(MembershipAttach, refusesRanksOutsideOfTheWorldAndASecondName) {
  Member a("a", 0, 2, 60s);
  for (int rank : {-1, 2})
    EXPECT_EQ(Code::kInvalidArgument,
              a.membership->attach({"x", rank}, socketPair().first, Connection::Kind::kCalls).code());
  auto [one, two] = socketPair();
  ASSERT_TRUE(a.membership->attach({"b", 1}, std::move(one), Connection::Kind::kCalls).ok());
  auto [three, four] = socketPair();
  Status other = a.membership->attach({"c", 1}, std::move(three), Connection::Kind::kServing);
  EXPECT_EQ(Code::kFailedPrecondition, other.code());
  EXPECT_NE(std::string::npos, other.message().find("two names, 'b' and 'c'"));
}

// Who was called by that name and is lost may be noted as lost a moment later.
TEST(MembershipNames, ofASuccessorAreNotThoseOfWhoWasThere) {
  auto reactor = valueOrThrow(io::Reactor::make());
  MembershipOptions options = optionsOf(60s, nullptr);
  options.open = true;
  Membership membership(*reactor, {"a", 0}, 1, options);
  for (int rank : {1, 2}) {
    membership.expect({"b", rank});
    membership.welcome(rank);
    Result<WorkerInfo> found = membership.awaitName("b", Clock::now());
    ASSERT_TRUE(found.ok()) << found.status().toString();
    EXPECT_EQ(rank, found->rank);
    EXPECT_EQ(rank, valueOrThrow(membership.rankOf("b"))) << "calls go to the last that came";
    Result<WorkerInfo> next = membership.awaitName("b", Clock::now() + 20ms, 1);
    ASSERT_EQ(rank == 2, next.ok()) << next.status().toString();
    EXPECT_EQ(2, next.ok() ? next->rank : 2);
  }
}

TEST(Liveness, aMemberThatFallsSilentIsLostAfterTheLimitAndNotBefore) {
  constexpr Duration kHeartbeatTimeout = 200ms;
  Member a("a", 0, 2, kHeartbeatTimeout), b("b", 1, 2, kHeartbeatTimeout);  // b never polls: it is stopped
  connectBothWays(a, b);
  TimePoint start = Clock::now();
  a.membership->startWatch();
  ASSERT_NO_FATAL_FAILURE(a.pollUntilALoss());
  EXPECT_GE(Clock::now() - start, kHeartbeatTimeout);
  auto [rank, why] = a.handler.losses().at(0);
  EXPECT_EQ(1, rank);
  EXPECT_NE(std::string::npos, why.message().find("nothing was heard of it for")) << why.message();
}

// The watch may begin long after the connections were made: some other worker may have been slow to connect.
TEST(Liveness, theTimeBeforeTheWatchCountsForNothing) {
  constexpr Duration kHeartbeatTimeout = 200ms;
  Member a("a", 0, 2, kHeartbeatTimeout), b("b", 1, 2, kHeartbeatTimeout);
  connectBothWays(a, b);
  a.pollUntil(Clock::now() + 2 * kHeartbeatTimeout);
  a.membership->startWatch();
  a.pollUntil(Clock::now() + kHeartbeatTimeout / 2);  // b's first heartbeat is not there yet
  EXPECT_EQ(0, a.handler.lost.count());
}

TEST(Liveness, heartbeatsKeepIdleMembers) {
  constexpr Duration kHeartbeatTimeout = 1s;
  Member a("a", 0, 2, kHeartbeatTimeout), b("b", 1, 2, kHeartbeatTimeout);
  connectBothWays(a, b);
  a.membership->startWatch();
  b.membership->startWatch();
  for (TimePoint end = Clock::now() + 3 * kHeartbeatTimeout; Clock::now() < end;) {
    a.pollUntil(Clock::now() + 10ms);
    b.pollUntil(Clock::now() + 10ms);
  }
  EXPECT_EQ(0, a.handler.lost.count());
  EXPECT_EQ(0, b.handler.lost.count());
}

// No byte goes between them, and still each sees that the other lives, and when it does no longer.
TEST(Liveness, aPulseInSharedMemoryKeepsIdleMembersAndStopsWithThem) {
  constexpr Duration kHeartbeatTimeout = 1s;
  auto aPool = valueOrThrow(memory::BlockPool::make(1U << 20)), bPool = valueOrThrow(memory::BlockPool::make(1U << 20));
  Member a("a", 0, 2, kHeartbeatTimeout, aPool.get()), b("b", 1, 2, kHeartbeatTimeout, bPool.get());
  connect(a, b);
  auto [calls, serving] = socketPair();
  const int fromB = serving.get();
  ASSERT_TRUE(b.membership->attach({"a", 0}, std::move(calls), Connection::Kind::kCalls).ok());
  ASSERT_TRUE(a.membership->attach({"b", 1}, std::move(serving), Connection::Kind::kServing).ok());
  a.membership->startWatch();
  b.membership->startWatch();
  auto bothPollFor = [&](Duration time) {
    for (TimePoint end = Clock::now() + time; Clock::now() < end;) {
      a.pollUntil(Clock::now() + 10ms);
      b.pollUntil(Clock::now() + 10ms);
    }
  };
  // Each must first map the other's memory and know its pulse.
  EXPECT_TRUE(test::eventually([&] {
    bothPollFor(kHeartbeatTimeout);
    b.pollUntil(Clock::now() + kHeartbeatTimeout / 2);
    int unread = -1;
    EXPECT_EQ(0, ::ioctl(fromB, FIONREAD, &unread));
    return unread == 0;
  }));
  bothPollFor(3 * kHeartbeatTimeout);
  EXPECT_EQ(0, a.handler.lost.count());
  EXPECT_EQ(0, b.handler.lost.count());
  TimePoint stopped = Clock::now();  // of b, that is
  ASSERT_NO_FATAL_FAILURE(a.pollUntilALoss());
  EXPECT_GE(Clock::now() - stopped, kHeartbeatTimeout / 2);
  EXPECT_EQ("b", a.handler.losses().at(0).second.worker());
}

// Both were stopped for longer than the limit, as when a machine is suspended; the first to run again must not give up
// the other, which has had no time to say anything.
TEST(Liveness, whoWasAwayItselfForgivesTheOthers) {
  constexpr Duration kHeartbeatTimeout = 800ms;
  Member a("a", 0, 2, kHeartbeatTimeout), b("b", 1, 2, kHeartbeatTimeout);
  connectBothWays(a, b);
  a.membership->startWatch();
  b.membership->startWatch();
  a.pollUntil(Clock::now() + kHeartbeatTimeout / 4);
  b.pollUntil(Clock::now() + kHeartbeatTimeout / 4);
  std::this_thread::sleep_for(3 * kHeartbeatTimeout);
  a.pollUntil(Clock::now() + kHeartbeatTimeout / 4);
  EXPECT_EQ(0, a.handler.lost.count());
  b.pollUntil(Clock::now() + kHeartbeatTimeout / 4);
  a.pollUntil(Clock::now() + kHeartbeatTimeout / 4);
  EXPECT_EQ(0, a.handler.lost.count());
  EXPECT_EQ(0, b.handler.lost.count());
  // Forgiven is not forgotten: one that stays silent goes.
  ASSERT_NO_FATAL_FAILURE(a.pollUntilALoss());
  EXPECT_EQ(1, a.handler.lost.count());
}

}  // namespace
}  // namespace treadle::cluster::membership_test

// Joining under `treadle run`, which reports that another worker ended: the join ends at once, with the name of that
// worker. The test plays the launcher and the other workers; it is about what a worker does whenever the report comes.

#include <future>

#include "tests/core/worker/here.h"
#include "tests/support/launch_environment.h"
#include "tests/support/meeting_at.h"
#include "tests/support/reactor_thread.h"
#include "tests/support/readable.h"
#include "tests/support/status_socket.h"
#include "treadle/core/cluster/rendezvous.h"
#include "treadle/core/cluster/status_socket.h"
#include "treadle/core/io/socket.h"

namespace treadle::join_launcher_test {
namespace {

using test::contains;
using test::patience;

constexpr const char* kKey = "a key of this job";
constexpr int kSize = 3;

// Rank 2, 'c', is the one that ends.
class JoinUnderTheLauncher : public ::testing::Test {
 protected:
  std::future<Status> join(const std::string& name, int rank, Duration timeout = test::kHangs) {
    JoinOptions options = test::joinOptions(name, rank, kSize, meeting.port());
    options.launch->jobKey = kKey;
    options.channels = valueOrThrow(Channels::parse("unix"));
    options.joinTimeout = timeout;
    return std::async(std::launch::async, [options] {
      try {
        Worker::join(options);
        return Status();
      } catch (const Error& error) {
        return error.status();
      }
    });
  }
  // The launcher reports to the worker of that rank.
  void reportEnd(int reader) {
    socket.send(cluster::encodeFirstEnd(
        {reader, kSize, "127.0.0.1:" + std::to_string(meeting.port()), 2, "c", "was killed by SIGKILL"}));
  }
  static void expectNamed(const Status& why) {
    EXPECT_EQ(Code::kPeerLost, why.code()) << why.toString();
    EXPECT_EQ("c", why.worker());
    EXPECT_EQ("worker 'c' (rank 2) was killed by SIGKILL before all had joined; look at its output", why.message());
  }
  // The worker tells its name, and at the end why it ends; the order is that of the socket.
  void expectGaveUp(const std::string& name) {
    EXPECT_EQ(name, socket.received());
    EXPECT_TRUE(cluster::tellsGivingUp(socket.received()));
  }
  link::Credentials credentials(const std::string& name, int rank) const {
    return {kKey, {link::Purpose::kRendezvous, {name, rank}}};
  }
  std::unique_ptr<cluster::RendezvousClient> played(const std::string& name, int rank) {
    return valueOrThrow(
        cluster::RendezvousClient::connect(test::meetingAt({meeting}), credentials(name, rank), patience()));
  }
  // Both register; the third one is a real worker.
  void exchange(cluster::RendezvousClient& one, cluster::RendezvousClient& other) {
    auto exchanged = std::async(std::launch::async, [&] { return other.exchange(kSize, addresses, patience()); });
    EXPECT_TRUE(one.exchange(kSize, addresses, patience()).ok());
    EXPECT_TRUE(exchanged.get().ok());
  }
  struct Others {
    std::unique_ptr<cluster::RendezvousClient> a, c;
  };
  Others serveUntilDialing() {
    server = valueOrThrow(
        cluster::RendezvousServer::start(*reactor, {meeting}, credentials("a", 0), kSize, test::kHangs, patience()));
    Others others{played("a", 0), played("c", 2)};
    b = join("b", 1);
    exchange(*others.a, *others.c);
    EXPECT_TRUE(test::readable(listener.get(), "a connection"));
    return others;
  }
  void TearDown() override {
    if (server) server->stop();
    reactor.stop();
  }

  const io::Address meeting = *io::Address::tcp("127.0.0.1", test::freePort());
  const std::string silent = "unix:treadle-test-silent-" + std::to_string(meeting.port());
  std::vector<std::string> addresses = {silent};  // of the played workers
  const io::Fd listener = valueOrThrow(io::listenOn(valueOrThrow(io::Address::parse(silent))));
  test::StatusSocket socket;
  test::LaunchEnvironment environment{{{cluster::kStatusVariable, socket.variableOf(socket.worker())}}};
  test::ReactorThread reactor;
  std::unique_ptr<cluster::RendezvousServer> server;
  std::future<Status> b;
};

TEST_F(JoinUnderTheLauncher, endsWhileRankZeroIsNotThere) {
  b = join("b", 1);
  reportEnd(1);
  expectNamed(b.get());
  expectGaveUp("b");
}

TEST_F(JoinUnderTheLauncher, endsAtOnceWhenTheReportIsOlder) {
  reportEnd(1);
  for (int time = 0; time < 2; ++time) {
    expectNamed(join("b", 1).get());
    expectGaveUp("b");
  }
}

// 'b' has registered and dials the others, which take its connection and say nothing.
TEST_F(JoinUnderTheLauncher, endsWhileItDialsTheOthersWhichHearWhyFromRankZero) {
  const auto [a, c] = serveUntilDialing();
  reportEnd(1);
  expectNamed(b.get());
  const Status told = a->ready(patience());
  EXPECT_EQ("c", told.worker());
  EXPECT_TRUE(contains(told.message(), "worker 'b' (rank 1) cannot join: worker 'c' (rank 2) was killed"))
      << told.message();
}

// Nor does an address hide it that this worker may not dial.
TEST_F(JoinUnderTheLauncher, namesTheWorkerThatEndedWhateverOtherAddressesThereAre) {
  addresses = {silent, "tcp://127.0.0.1:1"};
  const auto [a, c] = serveUntilDialing();
  reportEnd(1);
  expectNamed(b.get());
}

// What rank 0 found wrong says more than that a worker ended over it.
TEST_F(JoinUnderTheLauncher, keepsAnotherReasonThatRankZeroReports) {
  const auto [a, c] = serveUntilDialing();
  const Status reason = invalidArgument("the name 'c' is used twice");
  server->fail(reason).ignore();
  EXPECT_FALSE(c->ready(patience()).ok());  // rank 0 has written to 'b' before
  reportEnd(1);
  EXPECT_EQ(reason.toString(), b.get().toString());
}

TEST_F(JoinUnderTheLauncher, endsAsRankZeroForAllWhoHaveCome) {
  std::future<Status> a = join("a", 0);
  auto guest = played("b", 1), c = played("c", 2);
  exchange(*guest, *c);
  reportEnd(0);
  expectNamed(guest->ready(patience()));
  expectNamed(a.get());
  expectGaveUp("a");
}

TEST_F(JoinUnderTheLauncher, goesOnWhenTheReportIsOfAnotherJobOrNone) {
  for (const std::string& message :
       {std::string("ended\n"), cluster::encodeFirstEnd({1, kSize, "127.0.0.1:1", 2, "c", "was killed by SIGKILL"})}) {
    test::StatusSocket other;
    test::LaunchEnvironment named{{{cluster::kStatusVariable, other.variableOf(other.worker())}}};
    other.send(message);
    EXPECT_EQ(Code::kDeadlineExceeded, join("b", 1, std::chrono::milliseconds(100)).get().code()) << message;
  }
}

TEST_F(JoinUnderTheLauncher, goesOnWhenTheLauncherIsGone) {
  socket.closeLauncher();
  EXPECT_EQ(Code::kDeadlineExceeded, join("b", 1, std::chrono::milliseconds(100)).get().code());
}

}  // namespace
}  // namespace treadle::join_launcher_test

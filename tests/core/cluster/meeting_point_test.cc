// Where workers of one host meet: at a socket that other users cannot hold up, and at the port where that fails.

#include "treadle/core/cluster/meeting_point.h"

#include <sys/socket.h>

#include <future>
#include <set>

#include "tests/support/free_port.h"
#include "tests/support/meeting_at.h"
#include "tests/support/other_user.h"
#include "tests/support/reactor_thread.h"
#include "tests/support/readable.h"
#include "treadle/core/cluster/launch.h"

namespace treadle::cluster::meeting_point_test {
namespace {

using test::patience;

constexpr const char* kKey = "the key of this job";

link::Credentials credentialsOf(const std::string& name, int rank, bool unixSockets = true) {
  link::Credentials made{kKey, {link::Purpose::kRendezvous, {name, rank}}};
  made.unixSockets = unixSockets;
  return made;
}

class MeetingPoint : public ::testing::Test {
 protected:
  ~MeetingPoint() override {
    if (server) server->stop();
    reactor.stop();
  }
  Result<std::unique_ptr<RendezvousServer>> start(bool unixSockets = true) {
    return RendezvousServer::start(*reactor, {port}, credentialsOf("w0", 0, unixSockets), 1, test::kHangs, patience());
  }
  void serve(bool unixSockets = true) { server = valueOrThrow(start(unixSockets)); }
  Result<std::unique_ptr<RendezvousClient>> come(bool unixSockets = true) const {
    return RendezvousClient::connect(test::meetingAt({port}), credentialsOf("w0", 0, unixSockets), patience());
  }
  ::testing::AssertionResult isMet(bool unixSockets = true) const {
    auto client = come(unixSockets);
    if (!client.ok()) return ::testing::AssertionFailure() << client.status().toString();
    Result<Roster> roster = (*client)->exchange(1, {}, patience());
    return roster.ok() ? ::testing::AssertionSuccess() : ::testing::AssertionFailure() << roster.status().toString();
  }
  // Rank 0 says that it cannot have the socket, and is met all the same.
  void expectToMeetAtThePort() {
    testing::internal::CaptureStderr();
    auto started = start();
    const std::string log = testing::internal::GetCapturedStderr();
    ASSERT_TRUE(started.ok()) << started.status().toString();
    server = std::move(*started);
    EXPECT_NE(std::string::npos, log.find("workers can meet at " + port.toString() + " only: ")) << log;
    EXPECT_NE(std::string::npos, log.find("in use")) << log;
    EXPECT_TRUE(isMet());
  }

  const io::Address port = *io::Address::tcp("127.0.0.1", test::freePort());
  const io::Address socket = *credentialsOf("w0", 0).meetingSocket(port);
  test::ReactorThread reactor;
  std::unique_ptr<RendezvousServer> server;
};

// It comes before rank 0 does, and would wait for the stranger's answer.
TEST_F(MeetingPoint, isFoundAtTheSocketByAWorkerThatAStrangerAtThePortKeepsWaiting) {
  const io::Fd stranger = valueOrThrow(io::listenOn(port));
  auto coming = std::async(std::launch::async, [&] { return come(); });
  ASSERT_TRUE(test::readable(stranger.get(), "a worker"));
  std::vector<io::Stream> taken;
  link::Acceptor::Host host;
  host.check = [](const link::Hello&) { return Status(); };
  host.accept = [&](io::Stream stream, const link::Hello&) { taken.push_back(std::move(stream)); };
  auto rankZero = valueOrThrow(
      link::Acceptor::start(*reactor, valueOrThrow(io::listenOn(socket)), credentialsOf("w0", 0), std::move(host)));
  auto client = coming.get();
  EXPECT_TRUE(client.ok()) << client.status().toString();
  rankZero.reset();
  reactor.stop();
}

TEST_F(MeetingPoint, isAtThePortWhereTheSocketIsTaken) {
  const io::Fd holder(::socket(AF_UNIX, SOCK_STREAM, 0));
  ASSERT_EQ(0, ::bind(holder.get(), socket.get(), socket.size()));
  expectToMeetAtThePort();
}

TEST_F(MeetingPoint, isAtThePortWhereTheSocketIsAnotherUsers) {
  TREADLE_SKIP_WITHOUT_OTHER_USERS();
  const auto impostor = test::OtherUser::listeningAt(socket);
  expectToMeetAtThePort();
}

TEST_F(MeetingPoint, isAtThePortForAWorkerThatMayNotUseTheSocket) {
  serve();
  EXPECT_TRUE(io::connectTo(socket, patience()).ok());
  EXPECT_TRUE(isMet(false));
}

TEST_F(MeetingPoint, isAtThePortAloneWhereRankZeroMayNotUseTheSocket) {
  const io::Fd others = valueOrThrow(io::listenOn(socket));  // what comes there waits
  serve(false);
  EXPECT_TRUE(isMet(false));
  EXPECT_FALSE(io::waitFor(others.get(), POLLIN, Clock::now())) << "nobody comes to the socket";
}

TEST_F(MeetingPoint, hasNoWordForAnotherUserAtTheSocket) {
  TREADLE_SKIP_WITHOUT_OTHER_USERS();
  serve();
  for (int i = 0; i < 3; ++i) EXPECT_EQ(0, test::OtherUser::bytesHeardFrom(socket));
  EXPECT_TRUE(isMet());
}

TEST_F(MeetingPoint, isLetGoWhenRankZeroStops) {
  serve();
  server->stop();
  EXPECT_TRUE(io::listenOn(socket).ok());
}

// The error names the master's port, as where there is no socket.
TEST_F(MeetingPoint, namesThePortToAWorkerThatIsRefused) {
  serve();
  Status why = RendezvousClient::connect(test::meetingAt({port}), credentialsOf("w7", 7), patience()).status();
  EXPECT_EQ(Code::kInvalidArgument, why.code());
  EXPECT_EQ("the worker at " + port.toString() + ": rank 7 is not in this job of 1 workers", why.message());
}

TEST_F(MeetingPoint, hasASocketForEachKeyPortAndJob) {
  Launch plain{0, 1, "127.0.0.1", port.port(), kKey};
  Launch otherKey = plain, job = plain, otherJob = plain;
  otherKey.jobKey = "the key of another job";
  job.job = "slurm 77 0";
  otherJob.job = "slurm 77 1";
  std::set<std::string> names;
  for (const Launch* launch : {&plain, &otherKey, &job, &otherJob})
    for (uint16_t number : {29500, 29501}) {
      link::Credentials known = credentialsOf("w0", 0);
      known.jobKey = launch->secret();
      names.insert(known.meetingSocket(*io::Address::tcp("127.0.0.1", number))->toString());
    }
  EXPECT_EQ(8U, names.size());
}

}  // namespace
}  // namespace treadle::cluster::meeting_point_test

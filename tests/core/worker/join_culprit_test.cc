// Who is to blame when a job does not start because rank 0 dies: rank 0, also where a worker sees first what came of
// it. The test plays rank 0 and the other peers, so that it says what is seen in which order; 'b' is a real worker.

#include <sys/socket.h>

#include <array>
#include <future>

#include "tests/core/worker/here.h"
#include "tests/support/meeting_at.h"
#include "tests/support/reactor_thread.h"
#include "treadle/core/cluster/rendezvous.h"
#include "treadle/core/io/socket.h"
#include "treadle/core/link/frame_reader.h"

namespace treadle::join_culprit_test {
namespace {

using test::contains;
using test::patience;

constexpr const char* kKey = "a key of this job";
constexpr int kPlayed = 3;  // ranks 0, 2 and 3: 'a', 'c' and 'd'; 'b' is rank 1

// A worker that the test plays: takes connections, says nothing, and goes without a word.
struct Played {
  explicit Played(const std::string& name, int rank)
      : self{name, rank}, address("unix:treadle-test-" + name + "-" + std::to_string(test::freePort())) {}

  // From now on whoever dials it is welcome; until then it waits in the backlog.
  void welcome(io::Reactor& reactor) {
    link::Acceptor::Host host;
    host.check = [](const link::Hello&) { return Status(); };
    host.accept = [this](io::Stream stream, const link::Hello&) {
      taken = std::move(stream);
      connected.open();
    };
    acceptor = valueOrThrow(
        link::Acceptor::start(reactor, std::move(listener), credentials(link::Purpose::kPeer), std::move(host)));
  }
  link::Credentials credentials(link::Purpose purpose) const { return {kKey, {purpose, self}}; }

  const WorkerInfo self;
  const std::string address;
  io::Fd listener = valueOrThrow(io::listenOn(valueOrThrow(io::Address::parse(address))));
  std::unique_ptr<link::Acceptor> acceptor;
  io::Stream taken;  // the connection of 'b'
  test::Gate connected;
  std::unique_ptr<cluster::RendezvousClient> client;
};

class JoinCulprit : public ::testing::Test {
 protected:
  // All register; then 'b' dials in the order of ranks.
  void begin() {
    server = valueOrThrow(cluster::RendezvousServer::start(
        *reactor, {meeting}, played[0].credentials(link::Purpose::kRendezvous), kPlayed + 1, test::kHangs, patience()));
    b = std::async(std::launch::async, [this] {
      JoinOptions options = test::joinOptions("b", 1, kPlayed + 1, meeting.port());
      options.launch->jobKey = kKey;
      options.channels = valueOrThrow(Channels::parse("unix"));
      try {
        Worker::join(options);
        return Status();
      } catch (const Error& error) {
        return error.status();
      }
    });
    std::vector<std::future<cluster::Roster>> rosters;
    for (Played& one : played)
      rosters.push_back(std::async(std::launch::async, [&] {
        one.client = valueOrThrow(cluster::RendezvousClient::connect(
            test::meetingAt({meeting}), one.credentials(link::Purpose::kRendezvous), patience()));
        return valueOrThrow(one.client->exchange(kPlayed + 1, {one.address}, patience()));
      }));
    for (auto& one : rosters) roster = one.get();
  }
  void killRankZero() {
    server->stop();
    a().acceptor.reset();
    a().taken = {};
  }
  void expectRankZeroNamed(const Status& why) {
    EXPECT_EQ(Code::kPeerLost, why.code()) << why.toString();
    EXPECT_EQ("a", why.worker());
    EXPECT_TRUE(contains(why.message(), "worker 'a' (rank 0), where the workers meet, was lost")) << why.message();
  }
  void TearDown() override {
    server->stop();
    for (Played& one : played) one.acceptor.reset();
    reactor.stop();
  }
  Played& a() { return played[0]; }
  Played& c() { return played[1]; }
  Played& d() { return played[2]; }

  const io::Address meeting = *io::Address::tcp("127.0.0.1", test::freePort());
  std::array<Played, kPlayed> played = {Played("a", 0), Played("c", 2), Played("d", 3)};
  test::ReactorThread reactor;
  std::unique_ptr<cluster::RendezvousServer> server;
  cluster::Roster roster;
  std::future<Status> b;
};

// 'c' is the first to see that rank 0 is dead, and leaves: 'b' finds nobody at its address.
TEST_F(JoinCulprit, isRankZeroWhenAPeerThatLeftBecauseOfItCannotBeConnectedTo) {
  a().welcome(*reactor);
  begin();
  a().connected.wait();  // 'b' goes on to 'c', which does not answer yet
  killRankZero();
  c().listener = io::Fd();
  expectRankZeroNamed(b.get());
}

// The end of 'c' comes first, without a word; that of rank 0, the cause of it, later.
TEST_F(JoinCulprit, isRankZeroInTheLogAndTheFarewellOfAWorkerThatLosesAPeerFirst) {
  for (Played& one : played) one.welcome(*reactor);
  testing::internal::CaptureStderr();
  begin();
  link::Dialed toB = valueOrThrow(link::dial(valueOrThrow(io::Address::parse(roster.at(1).addresses.front())),
                                             c().credentials(link::Purpose::kPeer), patience()));
  d().connected.wait();  // the last one: 'b' is connected to all
  ::shutdown(toB.stream.fd(), SHUT_WR);
  std::array<std::byte, 4096> bytes;
  while (io::readAll(toB.stream, std::span(bytes).first(1), patience()).ok()) {}  // until 'b' has noticed
  killRankZero();
  expectRankZeroNamed(b.get());
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_FALSE(contains(log, "worker 'c' (rank 2) was lost")) << log;
  for (;;) {
    auto frame = valueOrThrow(link::readOneFrame(d().taken, {}, patience()));
    if (frame.header.kind != wire::FrameKind::kLeave) continue;
    const std::string reason(reinterpret_cast<const char*>(frame.payload.data()), frame.payload.size());
    EXPECT_TRUE(contains(reason, "it could not join: worker 'a' (rank 0)")) << reason;
    break;
  }
}

}  // namespace
}  // namespace treadle::join_culprit_test

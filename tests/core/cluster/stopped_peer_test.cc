// Liveness between processes, one of which is stopped and killed by signals.

#include <fcntl.h>
#include <signal.h>

#include "tests/core/cluster/recording_handler.h"
#include "tests/support/places.h"
#include "tests/support/reactor_thread.h"
#include "treadle/core/io/process.h"
#include "treadle/core/io/socket.h"

namespace treadle::cluster::stopped_peer_test {
namespace {

using namespace std::chrono_literals;

// This process as rank 0, and a child as rank 1.
class Two {
 public:
  explicit Two(Duration lostAfter)
      : membership(*reactor, {"parent", 0}, 2, {.lostAfter = lostAfter, .connection = {}}) {
    membership.setHandler(link::Subject::kRpc, handler);
    auto [mine, childsServing] = socketPair();
    auto [childsCalls, serving] = socketPair();
    io::ProcessOptions options;
    options.program = test::testProgram("core_cluster_silent_peer_program");
    options.arguments = {std::to_string(childsCalls.get()), std::to_string(childsServing.get())};
    options.keepOpen = {childsCalls.get(), childsServing.get()};
    child.emplace(valueOrThrow(io::Process::start(options)));
    EXPECT_TRUE(io::waitFor(child->standardOutput().get(), POLLIN, deadlineAfter(test::kHangs)));  // it watches
    WorkerInfo peer{"child", 1};
    EXPECT_TRUE(membership.attach(peer, std::move(mine), link::Connection::Kind::kCalls).ok());
    EXPECT_TRUE(membership.attach(peer, std::move(serving), link::Connection::Kind::kServing).ok());
    membership.startWatch();
  }
  ~Two() {
    membership.close("", Clock::now());
    reactor.stop();
  }

  RecordingHandler handler;
  test::ReactorThread reactor;
  Membership membership;
  std::optional<io::Process> child;
};

TEST(StoppedPeer, isLostWithinTheLimitAndNamed) {
  Two two(500ms);
  TimePoint stopped = Clock::now();
  two.child->signal(SIGSTOP);
  two.handler.lost.waitFor(1);
  EXPECT_LT(Clock::now() - stopped, 10s);
  Status why = two.handler.losses().at(0).second;
  EXPECT_EQ("child", why.worker());
  EXPECT_NE(std::string::npos, why.message().find("nothing was heard of it")) << why.message();
}

TEST(StoppedPeer, goesOnWhenItWasAwayForLessThanTheLimit) {
  Two two(8s);
  two.child->signal(SIGSTOP);
  std::this_thread::sleep_for(5s);  // longer than the child's own limit, 4 s: it must forgive us
  two.child->signal(SIGCONT);
  std::this_thread::sleep_for(500ms);
  EXPECT_FALSE(two.child->takeEnd().has_value());
  EXPECT_EQ(0, two.handler.lost.count());
}

TEST(StoppedPeer, isNoticedAtOnceWhenItIsKilled) {
  Two two(60s);
  TimePoint killed = Clock::now();
  two.child->signal(SIGKILL);
  two.handler.lost.waitFor(1);
  EXPECT_LT(Clock::now() - killed, 30s);
}

}  // namespace
}  // namespace treadle::cluster::stopped_peer_test

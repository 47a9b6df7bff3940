// Liveness between processes, one of which is stopped and killed by signals.

#include <fcntl.h>
#include <signal.h>

#include "tests/core/cluster/recording_handler.h"
#include "tests/support/places.h"
#include "tests/support/reactor_thread.h"
#include "tests/support/readable.h"
#include "treadle/core/io/process.h"
#include "treadle/core/io/socket.h"

namespace treadle::cluster::stopped_peer_test {
namespace {

using namespace std::chrono_literals;

// This process as rank 0, and a child as rank 1; each gives the other up after its own limit.
class Two {
 public:
  explicit Two(Duration heartbeatTimeout, Duration childsTimeout = test::kHangs)
      : membership(*reactor, {"parent", 0}, 2, {.heartbeatTimeout = heartbeatTimeout, .connection = {}}) {
    membership.setHandler(link::Subject::kRpc, handler);
    auto [mine, childsServing] = socketPair();
    auto [childsCalls, serving] = socketPair();
    io::ProcessOptions options;
    options.program = test::testProgram("core_cluster_silent_peer_program");
    options.arguments = {std::to_string(childsCalls.get()), std::to_string(childsServing.get()),
                         std::to_string(childsTimeout / 1ms)};
    options.keepOpen = {childsCalls.get(), childsServing.get()};
    child.emplace(valueOrThrow(io::Process::start(options)));
    EXPECT_EQ("watching", line());
    WorkerInfo peer{"child", 1};
    EXPECT_TRUE(membership.attach(peer, std::move(mine), link::Connection::Kind::kCalls).ok());
    EXPECT_TRUE(membership.attach(peer, std::move(serving), link::Connection::Kind::kServing).ok());
    membership.startWatch();
  }
  ~Two() {
    membership.close("", Clock::now());
    reactor.stop();
  }

  // Returns the child's next line.
  std::string line() { return test::readLine(child->standardOutput().get()); }
  // Returns when the child has read a message, and has polled anew since it was last asked.
  void askChild() {
    EXPECT_TRUE(membership.send(1, link::Subject::kRpc, {}, {}, link::SendMode::kCapture, test::patience()).ok());
    EXPECT_EQ("heard", line());
  }

  RecordingHandler handler;
  test::ReactorThread reactor;
  Membership membership;
  std::optional<io::Process> child;
};

TEST(StoppedPeer, isLostAfterTheLimitAndNamed) {
  Two two(3s, 3s);
  const TimePoint pastTheLimit = deadlineAfter(4s);
  while (Clock::now() < pastTheLimit) two.askChild();  // it is not lost as long as it runs
  EXPECT_EQ(0, two.handler.lost.count());
  two.child->signal(SIGSTOP);
  two.handler.lost.waitFor(1);
  Status why = two.handler.losses().at(0).second;
  EXPECT_EQ("child", why.worker());
  EXPECT_NE(std::string::npos, why.message().find("nothing was heard of it")) << why.message();
}

TEST(StoppedPeer, goesOnWhenItWasAwayForLessThanTheLimit) {
  Two two(15s, 6s);
  two.child->signal(SIGSTOP);
  std::this_thread::sleep_for(7s);  // longer than the child's own limit: it must forgive us
  two.child->signal(SIGCONT);
  for (int i = 0; i < 2; ++i) two.askChild();  // it has looked at its clock after the first
  EXPECT_FALSE(two.child->takeEnd().has_value());
  EXPECT_EQ(0, two.handler.lost.count());
}

TEST(StoppedPeer, isNoticedAtOnceWhenItIsKilled) {
  Two two(1h);  // heartbeats would not tell
  two.child->signal(SIGKILL);
  two.handler.lost.waitFor(1);
}

}  // namespace
}  // namespace treadle::cluster::stopped_peer_test

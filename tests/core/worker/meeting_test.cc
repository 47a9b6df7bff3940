// Workers of one user meet on their host whatever other programs do at the master's port.

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <atomic>
#include <future>
#include <thread>

#include "tests/core/worker/here.h"
#include "tests/core/worker/peer_process.h"
#include "tests/support/other_user.h"
#include "treadle/core/io/socket.h"
#include "treadle/core/link/handshake.h"

namespace treadle::meeting_test {
namespace {

using namespace std::chrono_literals;
using test::contains;
using test::peerAdd;

constexpr const char* kKey = "a key of this job";

// An acceptor made meanwhile shakes hands with an eighth of so many at a time.
class FewDescriptors {
 public:
  FewDescriptors() {
    EXPECT_EQ(0, ::getrlimit(RLIMIT_NOFILE, &before_));
    const rlimit few{.rlim_cur = 512, .rlim_max = before_.rlim_max};
    EXPECT_EQ(0, ::setrlimit(RLIMIT_NOFILE, &few));
  }
  ~FewDescriptors() { ::setrlimit(RLIMIT_NOFILE, &before_); }
  FewDescriptors(const FewDescriptors&) = delete;
  FewDescriptors& operator=(const FewDescriptors&) = delete;

 private:
  rlimit before_{};
};

// Another program of this host: opens some hundred connections a second to the port, and says nothing on them.
class SilentStrangers {
 public:
  explicit SilentStrangers(uint16_t port)
      : address_(*io::Address::tcp("127.0.0.1", port)), thread_([this] { run(); }) {}
  ~SilentStrangers() {
    over_ = true;
    thread_.join();
  }
  SilentStrangers(const SilentStrangers&) = delete;
  SilentStrangers& operator=(const SilentStrangers&) = delete;

  // Returns when the acceptor there has closed so many that it takes no more connections of this host for a while.
  void awaitFlood() { closed_.waitFor(closed_.count() + kClosed); }

 private:
  static constexpr size_t kHeld = 128;  // twice what the acceptor lets shake hands
  static constexpr int kClosed = 400;   // those, and twice the refusals after which it makes others wait

  void run() {
    std::vector<io::Fd> held;
    while (!over_) {
      if (held.size() < kHeld)
        if (auto fd = io::connectTo(address_, test::patience()); fd.ok()) held.push_back(std::move(*fd));
      closed_.add(static_cast<int>(
          std::erase_if(held, [](const io::Fd& fd) { return io::waitFor(fd.get(), POLLIN, Clock::now()); })));
      std::this_thread::sleep_for(2ms);  // the pace of the flood
    }
  }

  const io::Address address_;
  std::atomic<bool> over_ = false;
  test::Counter closed_;
  std::thread thread_;
};

class Meeting : public ::testing::Test {
 protected:
  JoinOptions options(const std::string& name, int rank, int size) const {
    JoinOptions made = test::joinOptions(name, rank, size, port, test::peerFunctions());
    made.launch->jobKey = kKey;
    return made;
  }
  std::shared_ptr<Worker> joinOpen(const std::string& name, bool first = false) const {
    return Worker::join(options(name, first ? 0 : kAnyRank, kOpenWorld));
  }
  // The workers of a job end it.
  static void shutdown(Worker& one, Worker& other) {
    auto ending = std::async(std::launch::async, [&] { other.shutdown({.timeout = 60s}); });
    one.shutdown({.timeout = 60s});
    ending.get();
  }
  io::Address socket() const {
    link::Credentials known{kKey, {}};
    known.unixSockets = true;
    return *known.meetingSocket(*io::Address::tcp("127.0.0.1", port));
  }

  const uint16_t port = test::freePort();
};

TEST_F(Meeting, isNotHeldUpByStrangersAtThePort) {
  const FewDescriptors few;
  SilentStrangers strangers(port);
  JoinOptions first = options("a", 0, 2), second = options("b", 1, 2);
  for (JoinOptions* one : {&first, &second}) one->launch->jobKey.clear();  // rank 0 makes one
  auto joining = std::async(std::launch::async, [&] { return Worker::join(first); });
  strangers.awaitFlood();
  auto b = Worker::join(second), a = joining.get();
  EXPECT_EQ(3, b->call<&peerAdd>("a", 1, 2));
  shutdown(*a, *b);
}

TEST_F(Meeting, ofAnOpenJobIsHandedOnAndNotHeldUpEither) {
  const FewDescriptors few;
  SilentStrangers strangers(port);
  auto a = joinOpen("a", true);
  strangers.awaitFlood();
  auto b = joinOpen("b");
  EXPECT_EQ(3, b->call<&peerAdd>("a", 1, 2));
  a->leave({.timeout = 60s});
  strangers.awaitFlood();
  auto c = joinOpen("c");
  EXPECT_EQ(3, c->call<&peerAdd>("b", 1, 2));
  shutdown(*b, *c);
}

// The first line of rank 0 is about the socket that it wants and another has; without "unix" it wants none.
TEST_F(Meeting, isAtThePortWhereTheSocketIsTakenOrNotAllowed) {
  const io::Fd holder(::socket(AF_UNIX, SOCK_STREAM, 0));
  ASSERT_EQ(0, ::bind(holder.get(), socket().get(), socket().size()));
  for (const char* channels : {"unix,tcp", "tcp"}) {
    JoinOptions alone = options("a", 0, 1);
    alone.channels = valueOrThrow(Channels::parse(channels));
    testing::internal::CaptureStderr();
    Worker::join(alone)->shutdown();
    const std::string log = testing::internal::GetCapturedStderr();
    EXPECT_EQ(alone.channels->unixSockets, contains(log, "workers can meet at tcp://127.0.0.1:")) << log;
  }
}

TEST_F(Meeting, ofTwoUsersIsAtThePort) {
  TREADLE_SKIP_WITHOUT_OTHER_USERS();
  io::Process child = test::startPeer(
      port, {{"TREADLE_TEST_USER", "65534"}, {"TREADLE_TEST_RANK", "0"}, {"TREADLE_TEST_JOB_KEY", kKey}});
  ASSERT_TRUE(test::eventually([&] { return io::connectTo(socket(), test::patience()).ok(); }));
  auto worker = Worker::join(options("b", 1, 2));
  EXPECT_EQ(3, worker->call<&peerAdd>("child", 1, 2));
  EXPECT_FALSE(worker->channelsTo("child").unixSockets.inUse);
  worker->shutdown();
}

}  // namespace
}  // namespace treadle::meeting_test

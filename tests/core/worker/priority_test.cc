// CallOptions::priority, from a call to the socket: the callee is stopped until all is queued.

#include <gtest/gtest.h>
#include <signal.h>

#include "tests/core/worker/here.h"
#include "tests/core/worker/peer_process.h"

namespace treadle::priority_test {
namespace {

using test::Bulk;

constexpr size_t kMiB = 1U << 20;
// So much that no thread of a busy machine is kept from running for as long as the rest of one takes.
constexpr size_t kLarge = 64 * kMiB;

// The names of calls in the order of their answers: three large ones that come first, and another of `priority`.
std::vector<std::string> orderOfAnswers(int priority, size_t size) {
  uint16_t port = test::freePort();
  io::Process child = test::startPeer(port, {{"TREADLE_CHANNELS", "unix,lanes"}});
  JoinOptions join = test::joinOptions("parent", 0, 2, port, test::peerFunctions());
  join.channels = valueOrThrow(Channels::parse("unix,lanes"));
  join.maxQueuedBytes = 8 * kLarge;  // none waits for room
  auto worker = Worker::join(join);
  worker->call<&test::peerSize>("child", test::bulkOf(2 * kMiB, 1));  // the lanes are there
  Mutex mutex;
  std::vector<std::string> order;
  std::vector<Future<void>> noted;
  auto ask = [&](const char* name, size_t bytes, int of) {
    noted.push_back(
        worker->with({.priority = of}).async<&test::peerSize>("child", test::bulkOf(bytes, 1)).then([&, name](size_t) {
          MutexLock lock(mutex);
          order.emplace_back(name);
        }));
  };
  child.signal(SIGSTOP);
  for (int i = 0; i < 3; ++i) ask("large", kLarge, 0);
  ask("other", size, priority);
  child.signal(SIGCONT);
  for (auto& one : noted) one.wait();
  worker->shutdown({.timeout = test::kHangs});
  return order;
}

TEST(Priority, letsLargeArgumentsOvertakeThoseOfOtherCalls) {
  EXPECT_EQ("other", orderOfAnswers(1, 12 * kMiB).front());
  EXPECT_EQ("other", orderOfAnswers(127, 12 * kMiB).front());
}

TEST(Priority, thatIsLowerLetsTheOthersGoFirst) { EXPECT_EQ("other", orderOfAnswers(-128, 2 * kLarge).back()); }

// Of which the other has the fewest to take.
TEST(Priority, thatIsTheSameMeansTakingTurns) { EXPECT_EQ("other", orderOfAnswers(0, kMiB).front()); }

}  // namespace
}  // namespace treadle::priority_test

// CallOptions::priority, from a call to the socket: the callee is stopped until all is queued.

#include <gtest/gtest.h>
#include <signal.h>

#include "tests/core/worker/here.h"
#include "tests/core/worker/peer_process.h"

namespace treadle::priority_test {
namespace {

using test::Bulk;

constexpr size_t kMiB = 1U << 20;

// The names of calls in the order of their answers: three of `large` bytes that come first, and another of `priority`.
std::vector<std::string> orderOfAnswers(size_t large, int priority, size_t size) {
  uint16_t port = test::freePort();
  io::Process child = test::startPeer(port, {{"TREADLE_CHANNELS", "unix,lanes"}});
  JoinOptions join = test::joinOptions("parent", 0, 2, port, test::peerFunctions());
  join.channels = valueOrThrow(Channels::parse("unix,lanes"));
  join.maxQueuedBytes = 3 * large + size;  // none waits for room
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
  for (int i = 0; i < 3; ++i) ask("large", large, 0);
  ask("other", size, priority);
  child.signal(SIGCONT);
  for (auto& one : noted) one.wait();
  worker->shutdown({.timeout = test::kHangs});
  return order;
}

// A thread that has the last piece of one may be kept from running while another thread moves those of the others. So
// there is more of them each time, until that takes longer than any thread of a busy machine has to wait.
template <class IsRight>
::testing::AssertionResult forLargeEnough(IsRight isRight) {
  for (const size_t large : {64 * kMiB, 128 * kMiB, 256 * kMiB})
    if (isRight(large)) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "not even among the largest";
}

TEST(Priority, letsLargeArgumentsOvertakeThoseOfOtherCalls) {
  for (const int priority : {1, 127})
    EXPECT_TRUE(
        forLargeEnough([&](size_t large) { return orderOfAnswers(large, priority, large / 5).front() == "other"; }));
}

TEST(Priority, thatIsLowerLetsTheOthersGoFirst) {
  EXPECT_TRUE(forLargeEnough([](size_t large) { return orderOfAnswers(large, -128, 2 * large).back() == "other"; }));
}

// Of which the other has the fewest to take.
TEST(Priority, thatIsTheSameMeansTakingTurns) {
  EXPECT_TRUE(forLargeEnough([](size_t large) { return orderOfAnswers(large, 0, large / 64).front() == "other"; }));
}

}  // namespace
}  // namespace treadle::priority_test

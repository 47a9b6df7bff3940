// Links that are full: callers wait for room, while the threads that poll and read go on with what others wait for.

#include <gtest/gtest.h>

#include <thread>

#include "tests/core/worker/here.h"

namespace treadle::full_link_test {
namespace {

using test::WorkerJob;

// Drops the reference that it is given.
void take(const RRef<int>&, const std::string&) {}

// Each call has its callee drop a reference, and the caller's polling thread acknowledge that, on the very link that is
// full of calls.
TEST(FullLink, AcknowledgesDroppedReferencesWithoutWaitingForRoom) {
  constexpr int kThreads = 3, kCalls = 3000;
  WorkerJob job({"a", "b"}, Functions().add<&take>("take"),
                [](JoinOptions& options) { options.maxQueuedBytes = 1 << 20; });
  const std::string text(3000, 'x');
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i)
    threads.emplace_back([&] {
      std::vector<Future<void>> calls;
      for (int j = 0; j < kCalls; ++j) calls.push_back(job[0].async<&take>("b", job[0].makeRRef(j), text));
      for (Future<void>& call : calls) EXPECT_NO_THROW(call.wait());
    });
  for (std::thread& thread : threads) thread.join();
  // What was refused is told again.
  EXPECT_TRUE(test::eventuallyReleased([&] { return job[1].metrics().referencesPending == 0; }));
}

}  // namespace
}  // namespace treadle::full_link_test

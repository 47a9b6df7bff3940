// Several threads of a worker send large values to one peer over lanes alone: every value arrives whole, in time.
// `make lanes` makes 100,000 calls over each kind of socket, and 5,000 under the thread sanitizer.

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdio>
#include <deque>
#include <thread>

#include "tests/core/worker/bulk.h"
#include "tests/support/gate.h"
#include "tests/support/seeds.h"
#include "tests/support/worker_job.h"

namespace treadle::lanes_stress_test {
namespace {

using test::Bulk;
using test::Random;
using test::WorkerJob;

constexpr int kThreads = 4, kCallsOfAThread = 125;
constexpr size_t kInFlight = 4;  // calls per thread that nothing waits for yet

struct Reply {
  size_t bytes;
  int64_t sum;
};
auto fields(Reply& reply) { return std::tie(reply.bytes, reply.sum); }
Reply weigh(const Bulk& bulk) { return {bulk.buffer.sizeBytes, test::sumOf(bulk)}; }

// Returns a size from 64 KiB to 8 MiB, with a uniform exponent. Buffers below 256 KiB go inline, between the others.
size_t pickSize(Random& random) {
  const double exponent = 16 + 7 * static_cast<double>(test::pick(random, 1000)) / 1000;
  return static_cast<size_t>(std::exp2(exponent));
}

// Calls that wait write from their own memory, the others from copies. A short limit ends a call in the middle of its
// bytes, which then go on from a copy.
void callFromOneThread(Worker& worker, uint64_t seed) {
  Random random(seed);
  std::deque<std::pair<Future<Reply>, Reply>> inFlight;
  const auto check = [](const Reply& expected, const Reply& reply) {
    EXPECT_EQ(expected.bytes, reply.bytes);
    EXPECT_EQ(expected.sum, reply.sum);
  };
  const auto takeOldest = [&] {
    check(inFlight.front().second, inFlight.front().first.wait());
    inFlight.pop_front();
  };
  for (int i = 0; i < kCallsOfAThread; ++i) {
    const Bulk bulk = test::bulkOf(pickSize(random), static_cast<unsigned>(1 + test::pick(random, 100)));
    const Reply expected = weigh(bulk);
    switch (test::pick(random, 8)) {
      case 0:
        try {
          const auto limit = std::chrono::microseconds(test::pick(random, 3000));
          check(expected, worker.with({.timeout = limit}).call<&weigh>("b", bulk));
        } catch (const TimeoutError&) {}
        break;
      case 1:
      case 2:
      case 3:
        if (inFlight.size() == kInFlight) takeOldest();
        inFlight.emplace_back(worker.async<&weigh>("b", bulk), expected);
        break;
      default: check(expected, worker.call<&weigh>("b", bulk));
    }
  }
  while (!inFlight.empty()) takeOldest();
}

class LanesStress : public ::testing::TestWithParam<const char*> {};

TEST_P(LanesStress, bringsEveryValueOfEveryThread) {
  Functions functions;
  functions.add<&weigh>("weigh");
  WorkerJob job({"a", "b"}, functions, [](JoinOptions& options) {
    options.channels = valueOrThrow(Channels::parse(GetParam()));
    options.rpcTimeout = test::kHangs;
  });
  // A call with time enough makes the lanes.
  job[0].call<&weigh>("b", test::bulkOf(size_t{1} << 20, 1));
  ASSERT_TRUE(job[0].channelsTo("b").lanes.inUse);
  size_t calls = 0;
  test::forSeeds(1, [&](Random& random) {
    calls += size_t{kThreads} * kCallsOfAThread;
    std::array<std::thread, kThreads> threads;
    for (std::thread& thread : threads)
      thread = std::thread([&worker = job[0], seed = random()] { EXPECT_NO_THROW(callFromOneThread(worker, seed)); });
    for (std::thread& thread : threads) thread.join();
  });
  EXPECT_GE(job[0].channelsTo("b").lanes.sentBytes, calls * (3U << 16));
  std::printf("lanes: %s calls=%zu\n", GetParam(), calls);  // scripts/lanes.sh compares it with what was asked for
}

INSTANTIATE_TEST_SUITE_P(Over, LanesStress, ::testing::Values("unix,lanes", "tcp,lanes"), [](const auto& way) {
  return std::string(way.param).substr(0, 4) == "unix" ? "Unix" : "Tcp";
});

}  // namespace
}  // namespace treadle::lanes_stress_test

// Calls whose arguments the callee reads straight from the caller's memory, as workers of one host do that share none.

#include "tests/core/worker/bulk.h"
#include "tests/core/worker/here.h"
#include "tests/support/seeds.h"

namespace treadle::cross_memory_test {
namespace {

using test::Bulk;
using test::bulkOf;
using test::Counter;
using test::Gate;
using test::Here;
using test::sumOf;
using test::WorkerJob;
using namespace std::chrono_literals;

// What a handler saw whose caller may have gone on.
struct Sight {
  Counter arrived, left;
  Gate gate;
  std::atomic<int64_t> sum = 0;
  std::atomic<int> wrong = 0;
};

int64_t sumWhenOpen(const Bulk& bulk, Here<Sight> sight) {
  test::waitAtGate(sight->arrived, sight->gate);
  int64_t sum = sumOf(bulk);
  sight->sum.store(sum);
  sight->left.add();
  return sum;
}

void noteSum(const Bulk& bulk, Here<Sight> sight) {
  if (sumOf(bulk) != static_cast<int64_t>(bulk.buffer.sizeBytes)) ++sight->wrong;
}

// Whether it was refused the wait, as it should be.
bool callAndOverwrite(CallContext& call, Here<Sight> sight) {
  Bulk bulk = bulkOf(8U << 20, 1);
  bool refused = false;
  try {
    call.worker().call<&noteSum>("A", bulk, sight);
  } catch (const ResourceError&) {
    refused = true;
  }
  std::fill_n(bulk.buffer.data, bulk.buffer.sizeBytes, std::byte{99});
  return refused;
}

void settle() {}

class CrossMemory : public ::testing::Test {
 protected:
  CrossMemory() {
    job[0].call<&settle>("B");  // its answer stands behind the answer to the offer
  }
  uint64_t readBytes() { return job[0].channelsTo("B").crossMemory.sentBytes; }

  Sight sight;
  WorkerJob job{{"A", "B"},
                Functions().add<&sumOf>("sumOf").add<&sumWhenOpen>("sumWhenOpen").add<&settle>("settle"),
                [](JoinOptions& options) { options.channels = Channels{.sharedMemory = false}; }};
};

TEST_F(CrossMemory, bringsTheArgumentsOfManyCallersAtOnce) {
  constexpr int kCallers = 4, kCalls = 40;
  std::vector<std::future<uint64_t>> callers;
  for (unsigned id = 1; id <= kCallers; ++id)
    callers.push_back(std::async(std::launch::async, [this, id] {
      test::Random random(id);
      uint64_t bytes = 0;
      for (int i = 0; i < kCalls; ++i) {
        size_t size = (1U << 20) + test::pick(random, 2U << 20);
        EXPECT_EQ(static_cast<int64_t>(size * id), job[0].call<&sumOf>("B", bulkOf(size, id)));
        bytes += size;
      }
      return bytes;
    }));
  uint64_t all = 0;
  for (auto& caller : callers) all += caller.get();
  EXPECT_EQ(all, readBytes());
}

// The caller goes on at its time limit, with its memory its own again; the handler has what was sent.
TEST_F(CrossMemory, isTheCallersAgainWhenItStopsWaiting) {
  EXPECT_TRUE(test::withLongerLimits(2s, [&](Duration limit) {
    Bulk bulk = bulkOf(8U << 20, 1);
    EXPECT_THROW(job[0].with({.timeout = limit}).call<&sumWhenOpen>("B", bulk, sight), TimeoutError);
    std::fill_n(bulk.buffer.data, bulk.buffer.sizeBytes, std::byte{99});
    return sight.arrived.count() > 0;  // else the call was over before the handler began
  }));
  sight.gate.open();
  sight.left.waitFor(1);
  EXPECT_EQ(8 << 20, sight.sum.load());
}

// A handler that may not wait, as too many do, leaves its call by an exception.
TEST(CrossMemoryOfManyHandlers, isTheCallersAgainWhenItMayNotWait) {
  Sight sight;
  Counter waiting;
  Gate gate;
  Functions functions = Functions()
                            .add<&settle>("settle")
                            .add<&test::waitAtGate>("waitAtGate")
                            .add<&noteSum>("noteSum")
                            .add<&callAndOverwrite>("callAndOverwrite");
  WorkerJob job({"A", "B"}, functions, [](JoinOptions& options) {
    options.channels = Channels{.sharedMemory = false};
    options.maxBlockedHandlers = 1;
  });
  job[1].call<&settle>("A");
  Future<void> first = job[0].async<&test::waitAtGate>("B", waiting, gate);
  waiting.waitFor(1);
  // It may have arrived a moment before it waits: then a call may be the one that is allowed to.
  EXPECT_TRUE(test::eventually([&] { return job[0].call<&callAndOverwrite>("B", sight); }));
  for (int round = 0; round < 20; ++round) (void)job[0].call<&callAndOverwrite>("B", sight);
  gate.open();
  try {
    first.wait();
  } catch (const ResourceError&) {}
  job.shutdown();
  EXPECT_EQ(0, sight.wrong.load()) << "calls saw what was written after them";
}

TEST_F(CrossMemory, ofACalleeThatIsLostIsTheCallersAgain) {
  EXPECT_EQ(1 << 20, job[0].call<&sumOf>("B", bulkOf(1U << 20, 1)));
  job.kill(1);
  EXPECT_THROW((void)job[0].call<&sumOf>("B", bulkOf(1U << 20, 1)), PeerLostError);
}

}  // namespace
}  // namespace treadle::cross_memory_test

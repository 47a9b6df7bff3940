// What a worker promises about the memory that it keeps for tensors. The limit is the process's, for good: it is set in
// a process of its own.

#include <gtest/gtest.h>

#include "tests/core/worker/here.h"
#include "tests/core/worker/peer_process.h"

namespace treadle::memory_limit_test {
namespace {

using test::Bulk;

constexpr size_t kMiB = 1U << 20, kLimit = 4 * kMiB;

struct Memory {
  explicit Memory(Worker& caller) {
    std::vector<uint64_t> told = caller.call<&test::peerMemory>("child");
    limitBytes = told.at(0), usedBytes = told.at(1), freeBytes = told.at(2);
  }
  uint64_t limitBytes, usedBytes, freeBytes;
};

class MemoryLimit : public ::testing::Test {
 protected:
  ~MemoryLimit() override { caller->shutdown({.timeout = test::kHangs}); }
  // The child copies it into a block, if it has one left, for this process to read.
  Bulk fetch(size_t size, unsigned value) {
    Bulk bulk = caller->call<&test::peerMake>("child", size, value);
    EXPECT_EQ(static_cast<int64_t>(size * value), test::sumOf(bulk)) << size;
    return bulk;
  }

  const uint16_t port = test::freePort();
  io::Process child = test::startPeer(port, {{"TREADLE_TEST_MEMORY_LIMIT", std::to_string(kLimit)}});
  const std::shared_ptr<Worker> caller = Worker::join(test::joinOptions("parent", 0, 2, port, test::peerFunctions()));
};

TEST_F(MemoryLimit, isWhatMetricsTell) {
  Memory memory(*caller);
  EXPECT_EQ(kLimit, memory.limitBytes);
  EXPECT_GE(kLimit, memory.usedBytes + memory.freeBytes);
}

// They take another way.
TEST_F(MemoryLimit, isNoLimitOfWhatTravels) {
  fetch(kMiB, 1);
  for (unsigned i = 2; i < 6; ++i) fetch(4 * kLimit, i);
  Memory memory(*caller);
  EXPECT_GE(kLimit, memory.usedBytes + memory.freeBytes);
}

// Half of it, for one peer.
TEST_F(MemoryLimit, isNotAllLentToOnePeer) {
  std::vector<Bulk> held;
  for (unsigned i = 1; i <= 8; ++i) held.push_back(fetch(kMiB, i));
  EXPECT_LT(kMiB, Memory(*caller).usedBytes);
  EXPECT_GE(kLimit / 2 + kMiB / 2, Memory(*caller).usedBytes) << "of which a little is its own";
}

TEST_F(MemoryLimit, isKeptUntilItIsTrimmed) {
  fetch(kMiB, 1);
  EXPECT_TRUE(test::eventually([&] { return Memory(*caller).freeBytes >= kMiB; }));
  caller->call<&test::peerTrim>("child");
  EXPECT_EQ(0U, Memory(*caller).freeBytes);
  fetch(kMiB, 2);
}

}  // namespace
}  // namespace treadle::memory_limit_test

// What becomes of the arena of a worker that is gone while tensors of others lie in it.

#include "gtest/gtest.h"
#include "tests/core/link/lent_blocks.h"
#include "tests/support/gate.h"
#include "tests/support/resident.h"
#include "treadle/core/base/error.h"
#include "treadle/core/link/peer_memory.h"

namespace treadle::link::lost_lender_test {
namespace {

using test::arenaOf;
using test::blockOf;
using test::bytesOf;
using test::kMiB;
using wire::Place;

// One worker that lends and two that borrow, each a peer of its own to the lender.
class LostLender : public ::testing::Test {
 protected:
  // Of a block that the lender gives to `to`.
  Buffer lend(PeerMemory& from, PeerMemory& to, int value) {
    return valueOrThrow(to.resolve(from.place(blockOf(*pool, kMiB, value))));
  }
  // What ends with the lender's process: its connections, its mapping, its descriptor.
  void endLender() {
    for (auto* memory : {&toA, &toB}) (*memory)->close();
    pool.reset();
  }
  std::shared_ptr<PeerMemory> peerOf(memory::BlockPool& own, PeerMemory& lender) {
    auto memory = std::make_shared<PeerMemory>(&own, 64 * kMiB);
    throwIfError(memory->setPeerArena(arenaOf(*pool)));
    lender.setMapped({});
    return memory;
  }
  static ::testing::AssertionResult comesDownTo(size_t sizeBytes, const Buffer& in) {
    return test::eventuallyReleased([&] { return test::residentAround(in.data) == sizeBytes; });
  }

  std::shared_ptr<memory::BlockPool> pool = valueOrThrow(memory::BlockPool::make(64 * kMiB));
  const std::shared_ptr<memory::BlockPool> aPool = valueOrThrow(memory::BlockPool::make(kMiB)),
                                           bPool = valueOrThrow(memory::BlockPool::make(kMiB));
  const std::shared_ptr<PeerMemory> toA = std::make_shared<PeerMemory>(pool.get(), 64 * kMiB),
                                    toB = std::make_shared<PeerMemory>(pool.get(), 64 * kMiB);
  const std::shared_ptr<PeerMemory> a = peerOf(*aPool, *toA), b = peerOf(*bPool, *toB);
};

TEST_F(LostLender, leavesOfItsArenaWhatIsBorrowed) {
  std::vector<Buffer> borrowed;
  for (int i = 0; i < 8; ++i) borrowed.push_back(lend(*toA, *a, i));
  Buffer kept = borrowed[3];
  b->close();
  endLender();
  a->close();
  borrowed.clear();
  EXPECT_TRUE(comesDownTo(kMiB, kept));
  EXPECT_EQ(bytesOf(kMiB, 3), std::vector<std::byte>(kept.data, kept.data + kept.sizeBytes));
  EXPECT_TRUE(test::eventuallyReleased([&] { return aPool->counters().orphanedBytes == kMiB; }));
}

TEST_F(LostLender, leavesWhatOthersHaveBorrowed) {
  Buffer atA = lend(*toA, *a, 1), atB = lend(*toB, *b, 2), others = lend(*toB, *b, 3);
  endLender();
  a->close();
  EXPECT_EQ(3 * kMiB, test::residentAround(atB.data)) << "b has not lost the lender yet";
  others = {};
  b->close();
  EXPECT_TRUE(comesDownTo(2 * kMiB, atA));
  EXPECT_EQ(bytesOf(kMiB, 1), std::vector<std::byte>(atA.data, atA.data + atA.sizeBytes));
  EXPECT_EQ(bytesOf(kMiB, 2), std::vector<std::byte>(atB.data, atB.data + atB.sizeBytes));
  atB = {};
  EXPECT_TRUE(comesDownTo(kMiB, atA));
  EXPECT_EQ(bytesOf(kMiB, 1), std::vector<std::byte>(atA.data, atA.data + atA.sizeBytes));
}

// The block went back and nobody reads it there.
TEST_F(LostLender, leavesNothingOfABlockThatWasReturned) {
  Buffer kept = lend(*toA, *a, 1), returned = lend(*toA, *a, 2);
  returned.given = true;
  ASSERT_EQ(Place::kReturned, a->place(returned).place);
  b->close();
  endLender();
  a->close();
  EXPECT_TRUE(comesDownTo(kMiB, kept));
  EXPECT_EQ(std::byte{1}, kept.data[kMiB - 1]);
}

TEST_F(LostLender, keepsItsArenaWhileItsProcessLives) {
  Buffer kept = lend(*toA, *a, 1), others = lend(*toA, *a, 2);
  others = {};
  for (auto* memory : {&toA, &toB, &a, &b}) (*memory)->close();  // the workers have left the job
  EXPECT_TRUE(test::eventually([&] { return aPool->counters().orphanedBytes == kMiB; }));
  EXPECT_EQ(2 * kMiB, test::residentAround(kept.data));
  pool.reset();
  EXPECT_TRUE(comesDownTo(kMiB, kept));
}

}  // namespace
}  // namespace treadle::link::lost_lender_test

// A peer that is killed while tensors are handed over in memory that both sides share.

#include <algorithm>
#include <thread>

#include "tests/faults/survivor.h"
#include "tests/support/resident.h"
#include "tests/support/slow_memory.h"

namespace treadle::killed_sharer_test {
namespace {

using link::SendMode;
using test::Channel;
using test::kVictimBytes;
using test::Survivor;

class KilledSharer : public ::testing::Test {
 protected:
  void meet(const std::string& point) { survivor.meet(point); }
  // Of a buffer of the survivor's, by a copy in a block.
  Status lend() {
    Buffer bytes = allocateBuffer(kVictimBytes);
    return survivor.send(test::kVictim, std::array{bytes}, SendMode::kCapture);
  }
  // Once the victim has said that it maps the arena, it may be lent blocks.
  void lendWhenItMay() {
    EXPECT_TRUE(test::eventually([&] { return lend().ok() && lentBytes() > 0; }));
  }
  size_t lentBytes() const { return survivor.pool->counters().usedBytes; }

  Survivor survivor{Channel::kSharedMemory};
};

// ---- the survivor's blocks

TEST_F(KilledSharer, beforeItMappedTheArena) {
  meet("takesTheArena");
  survivor.waitUntilThere();
  EXPECT_TRUE(lend().ok());
  EXPECT_EQ(0U, lentBytes());
  survivor.kill();
  survivor.expectNothingLeft();
}

TEST_F(KilledSharer, beforeItReadWhatWasLent) {
  meet("mapsTheArena");
  survivor.waitUntilThere();
  lendWhenItMay();
  survivor.kill();
  survivor.expectNothingLeft();
}

TEST_F(KilledSharer, whileTheSurvivorCopies) {
  meet("mapsTheArena");
  survivor.waitUntilThere();
  lendWhenItMay();
  const size_t before = lentBytes();
  std::optional<test::SlowMemory> slow(std::in_place, kVictimBytes);
  Status sent;
  std::thread sender([&] { sent = survivor.send(test::kVictim, std::array{slow->buffer()}, SendMode::kStay); });
  slow->waitForAReader();
  EXPECT_LT(before, lentBytes());
  survivor.kill();
  slow->letGoOn();
  sender.join();
  slow.reset();
  EXPECT_EQ(Code::kPeerLost, sent.code()) << sent.toString();
  survivor.expectNothingLeft();
}

TEST_F(KilledSharer, whileItHoldsABlock) {
  meet("holdsABlock");
  lendWhenItMay();
  survivor.waitUntilThere();
  survivor.kill();
  survivor.expectNothingLeft();
}

TEST_F(KilledSharer, inTheMiddleOfAReturn) {
  meet("returnsHalf");
  lendWhenItMay();
  survivor.waitUntilThere();
  survivor.kill();
  survivor.expectNothingLeft();
}

// What had come back before is the survivor's to keep, and is not lost with the rest.
TEST_F(KilledSharer, afterAReturn) {
  meet("returns");
  lendWhenItMay();
  survivor.waitUntilThere();
  survivor.mailbox.arrived.waitFor(1);
  survivor.kill();
  {
    link::Message back = survivor.mailbox.take().back();
    EXPECT_EQ(std::byte{9}, back.buffers.at(0).data[kVictimBytes - 1]);
    EXPECT_LE(kVictimBytes, lentBytes());
  }
  survivor.expectNothingLeft();
}

TEST_F(KilledSharer, inTheMiddleOfARelease) {
  meet("releasesHalf");
  lendWhenItMay();
  survivor.waitUntilThere();
  survivor.kill();
  survivor.expectNothingLeft();
}

// ---- the victim's blocks

TEST_F(KilledSharer, whoseArenaWasMappedAndNotUsed) {
  meet("offersItsArena");
  survivor.waitUntilThere();
  survivor.kill();
  survivor.expectNothingLeft();
}

// What it lent may be read on, and goes with its last holder.
TEST_F(KilledSharer, whileTheSurvivorHoldsItsBlock) {
  meet("lendsABlock");
  survivor.mailbox.arrived.waitFor(1);
  survivor.waitUntilThere();
  survivor.kill();
  {
    link::Message held = survivor.mailbox.take().back();
    EXPECT_EQ(std::byte{5}, held.buffers.at(0).data[kVictimBytes - 1]);
    held.buffers[0].data[0] = std::byte{6};
  }
  survivor.expectNothingLeft();
}

// What lies beside it goes with the process that made it.
TEST_F(KilledSharer, whileTheSurvivorHoldsOneOfManyBlocks) {
  meet("lendsManyBlocks");
  survivor.mailbox.arrived.waitFor(test::kVictimBlocks / 2);
  survivor.waitUntilThere();
  {
    Buffer kept = survivor.mailbox.take().at(2).buffers.at(0);
    EXPECT_LE(test::kVictimBlocks * kVictimBytes, test::residentAround(kept.data));
    survivor.kill();
    EXPECT_TRUE(test::eventuallyReleased([&] { return test::residentAround(kept.data) == kVictimBytes; }));
    EXPECT_TRUE(std::ranges::all_of(kept.bytes(), [](std::byte byte) { return byte == std::byte{4}; }));
    EXPECT_TRUE(test::eventually([&] { return survivor.pool->counters().orphanedBytes == kVictimBytes; }));
  }
  survivor.expectNothingLeft();
}

// The block is given up after the death, and before the survivor's reactor can have heard of it.
TEST_F(KilledSharer, withAReleaseOutstanding) {
  test::Gate held, dead;
  survivor.mailbox.keeps = false;
  survivor.mailbox.before = [&, first = true]() mutable {
    if (std::exchange(first, false)) held.open(), dead.wait();
  };
  meet("lendsABlock");
  held.wait();
  survivor.endVictim();
  dead.open();
  survivor.expectLoss();
  survivor.mailbox.keeps = true;
  survivor.expectNothingLeft();
}

}  // namespace
}  // namespace treadle::killed_sharer_test

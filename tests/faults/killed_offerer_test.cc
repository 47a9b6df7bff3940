// A peer that is killed while one side reads tensors straight from the memory of the other.

#include "tests/faults/survivor.h"
#include "tests/support/reads_memory.h"

namespace treadle::killed_offerer_test {
namespace {

using test::Channel;
using test::Survivor;

class ReadersOfMemory : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!test::readsMemory()) GTEST_SKIP() << "the system forbids it to read others' memory";
  }
  Survivor survivor{Channel::kOffered};
};

class KilledOfferer : public ReadersOfMemory {};

TEST_F(KilledOfferer, beforeItOfferedAnything) {
  survivor.meet("tellsItsTable");
  survivor.waitUntilThere();
  survivor.kill();
  survivor.expectNothingLeft();
}

// At whatever point of the reading: it comes whole, or not at all.
TEST_F(KilledOfferer, whileItsMemoryIsRead) {
  survivor.meet("offersABuffer");
  survivor.mailbox.heralded.waitFor(1);
  survivor.kill();
  EXPECT_TRUE(
      test::eventually([&] { return survivor.mailbox.arrived.count() + survivor.mailbox.failed.count() == 1; }));
  for (const link::Message& message : survivor.mailbox.take())
    for (std::byte byte : message.buffers.at(0).bytes()) ASSERT_EQ(std::byte{6}, byte);
  survivor.expectNothingLeft();
}

TEST_F(KilledOfferer, afterItsMemoryWasRead) {
  survivor.meet("offersABuffer");
  survivor.mailbox.arrived.waitFor(1);
  survivor.kill();
  EXPECT_EQ(std::byte{6}, survivor.mailbox.take().at(0).buffers.at(0).data[test::kOfferedBytes - 1]);
  survivor.expectNothingLeft();
}

// ---- the survivor's memory

class KilledReader : public ReadersOfMemory {
 protected:
  // Killed at that point of the survivor's offer, which harms neither the memory nor what comes after.
  void killAt(const std::string& point) {
    survivor.meet(point);
    Buffer bytes = allocateBuffer(test::kOfferedBytes);
    std::fill_n(bytes.data, bytes.sizeBytes, std::byte{3});
    std::shared_ptr<link::MemoryOffer> offer = survivor.offer(std::array{bytes});
    survivor.waitUntilThere();
    survivor.kill();
    offer.reset();
    for (std::byte byte : bytes.bytes()) ASSERT_EQ(std::byte{3}, byte);
    survivor.expectNothingLeft();
  }
};

TEST_F(KilledReader, beforeItSaidThatItCan) {
  survivor.meet("takesTheTable");
  survivor.waitUntilThere();
  survivor.kill();
  survivor.expectNothingLeft();
}

TEST_F(KilledReader, beforeItTookTheOffer) { killAt("answersTheTable"); }
TEST_F(KilledReader, beforeItRead) { killAt("takesAnOffer"); }
TEST_F(KilledReader, whileItReads) { killAt("readsAnOffer"); }

}  // namespace
}  // namespace treadle::killed_offerer_test

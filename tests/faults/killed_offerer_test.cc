// A peer that is killed while the survivor reads tensors straight from its memory.

#include "tests/faults/survivor.h"

namespace treadle {
namespace {

using test::Channel;
using test::Survivor;

class KilledOfferer : public ::testing::Test {
 protected:
  Survivor survivor{Channel::kOffered};
};

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

}  // namespace
}  // namespace treadle

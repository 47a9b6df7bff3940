#include "treadle/core/link/lane_receiver.h"

#include <algorithm>

#include "tests/support/seeds.h"
#include "treadle/core/base/error.h"

namespace treadle::link {
namespace {

using wire::BufferEntry;
using wire::PieceHeader;
using wire::Place;

constexpr uint64_t kLimit = 1U << 20;

Message messageOf(size_t buffers, int mark) {
  return {Subject::kRpc, std::vector<std::byte>(1, static_cast<std::byte>(mark)), std::vector<Buffer>(buffers)};
}

// Pieces and announcements in any order: each message comes once, whole, with its own bytes.
TEST(LaneReceiver, putsMessagesTogetherWhateverComesFirst) {
  test::forSeeds(300, [](test::Random& random) {
    LaneReceiver receiver(nullptr, kLimit);
    struct Event {
      std::optional<PieceHeader> piece;  // or an announcement
      uint64_t size = 0;
      size_t message = 0;
    };
    std::vector<Event> events;
    std::vector<std::vector<BufferEntry>> entries(1 + test::pick(random, 4));
    uint64_t number = 0;
    for (size_t m = 0; m < entries.size(); ++m) {
      for (uint64_t b = 0; b < 1 + test::pick(random, 3); ++b) {
        uint64_t total = 1 + test::pick(random, 5000);
        entries[m].push_back({total, Place::kOnLanes, ++number});
        for (uint64_t at = 0, size = 0; at < total; at += size) {
          size = std::min(total - at, 1 + test::pick(random, 2000));
          events.push_back({PieceHeader{number, at, total}, size, m});
        }
      }
      events.push_back({{}, 0, m});
    }
    std::shuffle(events.begin(), events.end(), random);
    std::vector<int> seen(entries.size());
    auto check = [&](const std::vector<Message>& whole) {
      for (const Message& message : whole) {
        auto m = static_cast<size_t>(message.payload[0]);
        ++seen[m];
        ASSERT_EQ(entries[m].size(), message.buffers.size());
        for (size_t b = 0; b < message.buffers.size(); ++b) {
          ASSERT_EQ(entries[m][b].sizeBytes, message.buffers[b].sizeBytes);
          for (uint64_t at = 0; at < message.buffers[b].sizeBytes; ++at)
            ASSERT_EQ(static_cast<std::byte>(entries[m][b].at * 31 + at), message.buffers[b].data[at]);
        }
      }
    };
    for (const Event& event : events) {
      if (!event.piece) {
        Message message = messageOf(entries[event.message].size(), static_cast<int>(event.message));
        check(valueOrThrow(receiver.announce(std::move(message), entries[event.message])));
        continue;
      }
      Buffer part = valueOrThrow(receiver.memoryFor(*event.piece, event.size));
      for (uint64_t at = 0; at < event.size; ++at)
        part.data[at] = static_cast<std::byte>(event.piece->number * 31 + event.piece->offsetBytes + at);
      check(receiver.filled(*event.piece, event.size));
    }
    EXPECT_EQ(std::vector<int>(entries.size(), 1), seen);
  });
}

TEST(LaneReceiver, refusesPiecesThatCannotBe) {
  LaneReceiver receiver(nullptr, kLimit);
  ASSERT_TRUE(receiver.memoryFor({1, 0, 1000}, 500).ok());
  EXPECT_EQ(Code::kDataLoss, receiver.memoryFor({1, 0, 1000}, 500).status().code());         // twice
  EXPECT_EQ(Code::kDataLoss, receiver.memoryFor({1, 499, 1000}, 2).status().code());         // overlapping
  EXPECT_EQ(Code::kDataLoss, receiver.memoryFor({1, 500, 1000}, 501).status().code());       // beyond the end
  EXPECT_EQ(Code::kDataLoss, receiver.memoryFor({1, UINT64_MAX, 1000}, 2).status().code());  // wraps around
  EXPECT_EQ(Code::kDataLoss, receiver.memoryFor({1, 500, 1001}, 1).status().code());         // another size
  EXPECT_EQ(Code::kDataLoss, receiver.memoryFor({1, 500, 1000}, 0).status().code());         // nothing
  EXPECT_EQ(Code::kDataLoss, receiver.memoryFor({2, 0, 0}, 0).status().code());
  EXPECT_EQ(Code::kResourceExhausted, receiver.memoryFor({3, 0, kLimit}, 1).status().code());  // over the limit
  EXPECT_EQ(Code::kResourceExhausted, receiver.memoryFor({4, 0, UINT64_MAX}, 1).status().code());
}

TEST(LaneReceiver, refusesAnnouncementsThatCannotBe) {
  LaneReceiver receiver(nullptr, kLimit);
  std::vector<BufferEntry> one = {{100, Place::kOnLanes, 1}};
  ASSERT_TRUE(receiver.announce(messageOf(1, 0), one).ok());
  EXPECT_EQ(Code::kDataLoss, receiver.announce(messageOf(1, 1), one).status().code());
  std::vector<BufferEntry> other = {{101, Place::kOnLanes, 1}}, empty = {{0, Place::kOnLanes, 2}};
  EXPECT_EQ(Code::kDataLoss, receiver.announce(messageOf(1, 1), other).status().code());
  EXPECT_EQ(Code::kDataLoss, receiver.announce(messageOf(1, 1), empty).status().code());
  std::vector<BufferEntry> large = {{kLimit, Place::kOnLanes, 3}};
  EXPECT_EQ(Code::kResourceExhausted, receiver.announce(messageOf(1, 1), large).status().code());
}

}  // namespace
}  // namespace treadle::link

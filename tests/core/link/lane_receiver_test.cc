#include "treadle/core/link/lane_receiver.h"

#include <algorithm>
#include <array>
#include <optional>

#include "tests/support/seeds.h"
#include "treadle/core/base/error.h"

namespace treadle::link::lane_receiver_test {
namespace {

using wire::BufferEntry;
using wire::Piece;
using wire::Place;

constexpr uint64_t kLimit = 1U << 20;

// A message as its receiver has it: buffers at once, told when their bytes are there.
struct Announced {
  std::vector<BufferEntry> entries;
  std::vector<Buffer> buffers;
  std::shared_ptr<Arrival> arrival;  // as the receiver gave it
  int announced = 0, whole = 0;

  Status announceTo(LaneReceiver& receiver) {
    buffers.resize(entries.size());
    Result<std::shared_ptr<Arrival>> got = receiver.announce(entries, buffers);
    if (!got.ok()) return got.status();
    ++announced;
    if (*got) {
      (*got)->whenWhole([this](const Status& status) { whole += status.ok() ? 1 : 0; });
    } else {
      ++whole;
    }
    return {};
  }
};

std::byte byteOf(uint64_t number, uint64_t at) { return static_cast<std::byte>(number * 31 + at); }

bool hasItsBytes(const Announced& message) {
  for (size_t b = 0; b < message.entries.size(); ++b)
    for (uint64_t at = 0; at < message.entries[b].sizeBytes; ++at)
      if (message.buffers[b].data[at] != byteOf(message.entries[b].at, at)) return false;
  return true;
}

// Pieces and announcements in any order: each message is whole once, with its own bytes, and not before the last.
TEST(LaneReceiver, putsMessagesTogetherWhateverComesFirst) {
  test::forSeeds(300, [](test::Random& random) {
    LaneReceiver receiver(nullptr, kLimit);
    struct Event {
      std::optional<Piece> piece;  // or an announcement
      size_t message = 0;
    };
    std::vector<Event> events;
    std::vector<Announced> messages(1 + test::pick(random, 4));
    std::vector<size_t> missing(messages.size());
    uint64_t number = 0;
    for (size_t m = 0; m < messages.size(); ++m) {
      for (uint64_t b = 0; b < 1 + test::pick(random, 3); ++b) {
        uint64_t total = 1 + test::pick(random, 5000);
        messages[m].entries.push_back({total, Place::kOnLanes, ++number});
        for (uint64_t at = 0, size = 0; at < total; at += size) {
          size = std::min(total - at, 1 + test::pick(random, 2000));
          events.push_back({Piece{number, at, total, size}, m});
          ++missing[m];
        }
      }
      events.push_back({{}, m});
    }
    std::shuffle(events.begin(), events.end(), random);
    for (const Event& event : events) {
      Announced& message = messages[event.message];
      if (event.piece) {
        Buffer part = valueOrThrow(receiver.memoryFor(*event.piece));
        for (uint64_t at = 0; at < event.piece->sizeBytes; ++at)
          part.data[at] = byteOf(event.piece->number, event.piece->offsetBytes + at);
        receiver.filled(*event.piece);
        --missing[event.message];
      } else {
        ASSERT_TRUE(message.announceTo(receiver).ok());
      }
      bool complete = message.announced == 1 && missing[event.message] == 0;
      ASSERT_EQ(complete ? 1 : 0, message.whole);
      ASSERT_TRUE(!complete || hasItsBytes(message));
    }
  });
}

// Whoever waits for bytes that will not come is told why, once; nothing is taken after that.
TEST(LaneReceiver, tellsWhoWaitsThatNothingMoreComes) {
  LaneReceiver receiver(nullptr, kLimit);
  std::vector<BufferEntry> entries = {{100, Place::kOnLanes, 1}, {100, Place::kOnLanes, 2}};
  std::vector<Buffer> buffers(2);
  auto arrival = valueOrThrow(receiver.announce(entries, buffers));
  std::vector<Status> told;
  arrival->whenWhole([&](const Status& status) { told.push_back(status); });
  receiver.clear(peerLost("b", "it is gone"));
  receiver.clear(peerLost("b", "it is gone"));
  ASSERT_EQ(1U, told.size());
  EXPECT_EQ(Code::kPeerLost, told[0].code());
  arrival->whenWhole([&](const Status& status) { told.push_back(status); });  // who asks later hears the same
  EXPECT_EQ(Code::kPeerLost, told.back().code());
  EXPECT_EQ(Code::kPeerLost, receiver.memoryFor({3, 0, 10, 10}).status().code());
}

TEST(LaneReceiver, refusesPiecesThatCannotBe) {
  LaneReceiver receiver(nullptr, kLimit);
  ASSERT_TRUE(receiver.memoryFor({1, 0, 1000, 500}).ok());
  EXPECT_EQ(Code::kDataLoss, receiver.memoryFor({1, 0, 1000, 500}).status().code());         // twice
  EXPECT_EQ(Code::kDataLoss, receiver.memoryFor({1, 499, 1000, 2}).status().code());         // overlapping
  EXPECT_EQ(Code::kDataLoss, receiver.memoryFor({1, 500, 1000, 501}).status().code());       // beyond the end
  EXPECT_EQ(Code::kDataLoss, receiver.memoryFor({1, UINT64_MAX, 1000, 2}).status().code());  // wraps around
  EXPECT_EQ(Code::kDataLoss, receiver.memoryFor({1, 500, 1001, 1}).status().code());         // another size
  EXPECT_EQ(Code::kDataLoss, receiver.memoryFor({1, 500, 1000, 0}).status().code());         // nothing
  EXPECT_EQ(Code::kDataLoss, receiver.memoryFor({2, 0, 0, 0}).status().code());
  EXPECT_EQ(Code::kResourceExhausted, receiver.memoryFor({3, 0, kLimit, 1}).status().code());  // over the limit
  EXPECT_EQ(Code::kResourceExhausted, receiver.memoryFor({4, 0, UINT64_MAX, 1}).status().code());
}

TEST(LaneReceiver, refusesAnnouncementsThatCannotBe) {
  LaneReceiver receiver(nullptr, kLimit);
  auto announce = [&](BufferEntry entry) {
    std::vector<Buffer> buffers(1);
    return receiver.announce(std::array{entry}, buffers).status().code();
  };
  ASSERT_EQ(Code::kOk, announce({100, Place::kOnLanes, 1}));
  EXPECT_EQ(Code::kDataLoss, announce({100, Place::kOnLanes, 1}));              // twice
  EXPECT_EQ(Code::kDataLoss, announce({101, Place::kOnLanes, 1}));              // another size
  EXPECT_EQ(Code::kDataLoss, announce({0, Place::kOnLanes, 2}));                // nothing
  EXPECT_EQ(Code::kResourceExhausted, announce({kLimit, Place::kOnLanes, 3}));  // over the limit
}

}  // namespace
}  // namespace treadle::link::lane_receiver_test

#include "treadle/core/wire/frame.h"

#include <cstring>

#include "tests/support/bytes.h"
#include "treadle/core/base/error.h"
#include "treadle/core/wire/crc32c.h"

namespace treadle::wire::frame_test {
namespace {

std::vector<BufferEntry> entriesOf(const std::vector<size_t>& sizes) {
  std::vector<BufferEntry> entries;
  for (size_t size : sizes) entries.push_back({size});
  return entries;
}

// What a receiver does with the front of a frame: the buffers' entries, or why it refuses it. `stream` may be longer.
Result<std::vector<BufferEntry>> receive(Bytes stream, const FrameLimits& limits = {}) {
  Result<FrameHeader> header = parseHeader(stream.first(kHeaderBytes), limits);
  if (!header.ok()) return std::move(header).status();
  if (header->frontBytes() > stream.size()) return cancelled("it waits for more bytes");
  return parseFront(*header, stream.first(header->frontBytes()));
}

// A stranger's implementation has to make exactly these bytes (docs/protocol/link.md).
TEST(Frame, hasTheDocumentedLayout) {
  std::vector<std::byte> payload = {std::byte{0xAA}, std::byte{0xBB}};
  std::vector<BufferEntry> buffers = {{5}, {0x0102030405, Place::kReturned, 7}};
  std::vector<std::byte> front = frameFront(FrameKind::kMessage, 2, payload, buffers);
  std::vector<int> expected = {'T', 'D', 'L', '1', 2,  2, 2, 0, 2, 0, 0, 0,  // magic kind subject count payload
                               0,   0,   0,   0,   10, 4, 3, 2, 1, 0, 0, 0,  // crc bytes of buffers
                               5,   0,   0,   0,   0,  0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,  // size and place, at
                               5,   4,   3,   2,   1,  0, 0, 2, 7, 0, 0, 0, 0, 0, 0, 0, 0xAA, 0xBB};
  std::vector<std::byte> plain;
  for (int value : expected) plain.push_back(static_cast<std::byte>(value));
  // The header's own check is the lower half of a checksum of its fields but the crc.
  auto check = static_cast<uint16_t>(crc32c(Bytes(plain).subspan(16, 6), crc32c(Bytes(plain).first(12))));
  std::memcpy(plain.data() + 22, &check, sizeof check);
  uint32_t crc = crc32c(plain);
  std::memcpy(plain.data() + 12, &crc, sizeof crc);
  EXPECT_EQ(plain, front);
}

// Workers of before version 7 wrote none, and are to understand whom they talk to.
TEST(Frame, ofTheHandshakeHasNoCheckOfItsHeader) {
  std::vector<std::byte> front = frameFront(FrameKind::kHandshake, 0, {});
  EXPECT_EQ(std::byte{0}, front[22]);
  EXPECT_EQ(std::byte{0}, front[23]);
  EXPECT_TRUE(receive(front).ok());
}

// Nobody waits for the bytes of a length that was damaged.
TEST(Frame, withADamagedLengthIsRefusedAtOnce) {
  std::vector<std::byte> payload(1000);
  const std::vector<std::byte> front = frameFront(FrameKind::kMessage, 2, payload, entriesOf({3, 9}));
  for (size_t bit = 0; bit < 8 * kHeaderBytes; ++bit) {
    std::vector<std::byte> header(front.begin(), front.begin() + kHeaderBytes);
    header[bit / 8] ^= static_cast<std::byte>(1U << (bit % 8));
    const bool inCrc = bit / 8 >= 12 && bit / 8 < 16;  // its turn comes with the rest of the front
    EXPECT_EQ(inCrc, parseHeader(header, {}).ok()) << "bit " << bit;
  }
}

TEST(Frame, comesBackAsItWasMade) {
  test::forSeeds(300, [](test::Random& random) {
    std::vector<std::byte> payload = test::randomBytes(random, test::pick(random, 100));
    std::vector<size_t> sizes(test::pick(random, 6));
    for (size_t& size : sizes) size = test::pick(random, 1000);
    std::vector<BufferEntry> entries = entriesOf(sizes);
    for (BufferEntry& entry : entries)
      entry = {entry.sizeBytes, static_cast<Place>(test::pick(random, kPlaces)), random()};
    auto kind = static_cast<FrameKind>(1 + test::pick(random, 10));
    auto subject = static_cast<uint8_t>(random());
    std::vector<std::byte> front = frameFront(kind, subject, payload, entries);
    Result<FrameHeader> header = parseHeader(front, {});
    ASSERT_TRUE(header.ok()) << header.status().toString();
    EXPECT_EQ(kind, header->kind);
    EXPECT_EQ(subject, header->subject);
    EXPECT_EQ(payload.size(), header->payloadBytes);
    ASSERT_EQ(front.size(), header->frontBytes());
    Result<std::vector<BufferEntry>> got = parseFront(*header, front);
    ASSERT_TRUE(got.ok()) << got.status().toString();
    EXPECT_EQ(entries, *got);
    Bytes tail = Bytes(front).subspan(kHeaderBytes + header->entriesBytes());
    EXPECT_TRUE(std::equal(tail.begin(), tail.end(), payload.begin(), payload.end()));
  });
}

TEST(Frame, isRefusedWhenItsHeaderIsCutAnywhere) {
  std::vector<std::byte> front = frameFront(FrameKind::kHeartbeat, 0, {});
  for (size_t cut = 0; cut < kHeaderBytes; ++cut)
    EXPECT_EQ(Code::kDataLoss, parseHeader(Bytes(front).first(cut), {}).status().code()) << cut;
}

// A checksum of 32 bits finds every change within 32 bits; so no frame with one byte changed gets through.
TEST(Frame, withOneByteChangedIsRefused) {
  test::forSeeds(200, [](test::Random& random) {
    std::vector<std::byte> payload = test::randomBytes(random, test::pick(random, 40));
    std::vector<std::byte> front = frameFront(FrameKind::kMessage, 2, payload, entriesOf({3, 9}));
    std::vector<std::byte> stream = front;
    std::vector<std::byte> more = test::randomBytes(random, 200);  // what would follow
    stream.insert(stream.end(), more.begin(), more.end());
    ASSERT_TRUE(receive(stream).ok());
    for (size_t at = 0; at < front.size(); ++at) {
      std::byte before = stream[at];
      stream[at] ^= static_cast<std::byte>(1 + test::pick(random, 255));
      ASSERT_FALSE(receive(stream).ok()) << "byte " << at;
      stream[at] = before;
    }
  });
}

TEST(Frame, survivesAHundredThousandMutations) {
  test::Random random(1);
  std::vector<std::byte> front =
      frameFront(FrameKind::kMessage, 2, test::randomBytes(random, 64), entriesOf({7, 0, 100}));
  std::vector<std::byte> original = front;
  original.resize(512);
  int accepted = 0;
  for (int i = 0; i < 100'000; ++i) {
    std::vector<std::byte> stream = original;
    for (uint64_t left = 1 + test::pick(random, 4); left > 0; --left) {
      // Mostly in the header, where lengths are.
      size_t at = test::pick(random, test::pick(random, 4) == 0 ? front.size() : kHeaderBytes);
      stream[at] = static_cast<std::byte>(random());
    }
    bool same = std::equal(front.begin(), front.end(), stream.begin());
    if (!same && receive(stream).ok()) ++accepted;
  }
  EXPECT_EQ(0, accepted);
}

TEST(Frame, isTakenUpToTheLimitsAndRefusedBeyond) {
  FrameLimits limits{.payloadBytes = 10, .bufferBytes = 20};
  std::vector<std::byte> payload(11);
  EXPECT_TRUE(receive(frameFront(FrameKind::kMessage, 1, Bytes(payload).first(10), entriesOf({12, 8})), limits).ok());
  Status large = receive(frameFront(FrameKind::kMessage, 1, payload), limits).status();
  EXPECT_EQ(Code::kResourceExhausted, large.code());
  EXPECT_NE(std::string::npos, large.message().find("11 bytes is over the limit of 10"));
  Status many = receive(frameFront(FrameKind::kMessage, 1, {}, entriesOf({12, 9})), limits).status();
  EXPECT_EQ(Code::kResourceExhausted, many.code());
}

// Headers that lie about buffers, with a checksum that fits: an authenticated peer can make them.
TEST(Frame, isRefusedWhenBufferSizesDoNotAddUp) {
  auto withSizes = [](uint64_t sum, std::vector<uint64_t> sizes) {
    std::vector<std::byte> front = frameFront(FrameKind::kMessage, 1, {}, entriesOf(std::vector<size_t>(sizes.size())));
    std::memcpy(front.data() + 16, &sum, 6);
    auto check = static_cast<uint16_t>(crc32c(Bytes(front).subspan(16, 6), crc32c(Bytes(front).first(12))));
    std::memcpy(front.data() + 22, &check, sizeof check);
    for (size_t i = 0; i < sizes.size(); ++i) std::memcpy(front.data() + kHeaderBytes + 16 * i, &sizes[i], 8);
    uint32_t crc = 0;
    std::memcpy(front.data() + 12, &crc, sizeof crc);
    crc = crc32c(front);
    std::memcpy(front.data() + 12, &crc, sizeof crc);
    return receive(front).status();
  };
  EXPECT_TRUE(withSizes(10, {4, 6}).ok());
  EXPECT_EQ(Code::kDataLoss, withSizes(10, {4, 5}).code());
  EXPECT_EQ(Code::kDataLoss, withSizes(10, {4, 7}).code());
  EXPECT_EQ(Code::kDataLoss, withSizes(10, {(uint64_t{1} << 56) - 1, 11}).code());  // 56 bits would wrap around to 10
  EXPECT_EQ(Code::kDataLoss, withSizes(10, {10 | uint64_t{5} << 56}).code());       // a place that there is not
  EXPECT_EQ(Code::kDataLoss, withSizes(10, {}).code());
}

TEST(Frame, ofAnUnknownKindOrAnotherProtocolSaysSo) {
  std::vector<std::byte> front = frameFront(FrameKind::kMessage, 1, {});
  front[4] = std::byte{12};
  EXPECT_NE(std::string::npos, receive(front).status().message().find("unknown kind 12"));
  front[4] = std::byte{0};
  EXPECT_EQ(Code::kDataLoss, receive(front).status().code());
  std::string http = "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";
  EXPECT_NE(std::string::npos,
            receive(std::as_bytes(std::span(http))).status().message().find("does not speak Treadle's protocol"));
}

TEST(Piece, comesBackAsItWasMadeAndIsRefusedOtherwise) {
  const Piece made{7, 1 << 20, 5 << 20, 4096, 0x12345678};
  std::vector<std::byte> front = pieceFront(made);
  ASSERT_EQ(kPieceFrontBytes, front.size());
  EXPECT_EQ(made, valueOrThrow(parsePieceFront(front, {})));
  for (size_t i = 0; i < front.size(); ++i) {
    std::vector<std::byte> damaged = front;
    damaged[i] ^= std::byte{1};
    EXPECT_FALSE(parsePieceFront(damaged, {}).ok()) << i;
  }
  // Frames of the same length that are none: of another kind, and with a buffer that lies elsewhere.
  std::vector<std::byte> payload(24);
  for (auto [kind, place] :
       {std::pair(FrameKind::kMessage, Place::kInline), std::pair(FrameKind::kPiece, Place::kLent)}) {
    std::vector<std::byte> other = frameFront(kind, 1, payload, std::array{BufferEntry{4096, place, 0}});
    ASSERT_EQ(kPieceFrontBytes, other.size());
    EXPECT_EQ(Code::kDataLoss, parsePieceFront(other, {}).status().code());
  }
  FrameLimits small;
  small.bufferBytes = 4095;
  EXPECT_EQ(Code::kResourceExhausted, parsePieceFront(front, small).status().code());
}

}  // namespace
}  // namespace treadle::wire::frame_test

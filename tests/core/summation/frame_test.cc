// Frames as they go on the wire: to the byte, back again, and what is refused.

#include "treadle/core/summation/frame.h"

#include <cstring>

#include "tests/support/bytes.h"
#include "treadle/core/wire/crc32c.h"

namespace treadle::summation::frame_test {
namespace {

using test::pick;
using test::Random;

Bytes bytesOf(const std::vector<std::byte>& piece) { return {piece.data(), piece.size()}; }

Frame drawnFrame(Random& random) {
  const auto kind = static_cast<FrameKind>(1 + pick(random, 8));
  const bool hasPiece = kind == FrameKind::kAddend || kind == FrameKind::kSum || kind == FrameKind::kVersion;
  const auto size = static_cast<uint32_t>(hasPiece ? 1 + pick(random, kMostPieceBytes) : 0);
  return {kind, size, static_cast<uint32_t>(random()), random(), random()};
}

// The layout of the header's comment.
TEST(Frame, LiesOnTheWireAsItIsDocumented) {
  const std::vector<std::byte> piece = {std::byte{7}, std::byte{8}};
  FrameHeader header = encode({FrameKind::kAddend, 2, 0x01020304, 5, 0x1122334455667788}, piece);
  const uint8_t expected[] = {3, 0, 0, 0, 2, 0, 0, 0, 4,    3,    2,    1,    0,    0,    0,    0,
                              5, 0, 0, 0, 0, 0, 0, 0, 0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11};
  FrameHeader bare;
  std::memcpy(bare.data(), expected, bare.size());
  const uint32_t crc = wire::crc32c(bytesOf(piece), wire::crc32c(bare));
  std::memcpy(bare.data() + 12, &crc, 4);
  const auto check = static_cast<uint16_t>(wire::crc32c(bare));
  std::memcpy(bare.data() + 2, &check, 2);
  EXPECT_EQ(bare, header);
}

TEST(Frame, ComesBackAsItWasSent) {
  test::forSeeds(300, [](Random& random) {
    const Frame frame = drawnFrame(random);
    const std::vector<std::byte> piece = test::randomBytes(random, frame.sizeBytes);
    const FrameHeader header = encode(frame, piece);
    const Result<Frame> parsed = parseFrame(header);
    ASSERT_TRUE(parsed.ok()) << parsed.status().message();
    EXPECT_EQ(frame, *parsed);
    EXPECT_TRUE(isWhole(header, piece));
  });
}

TEST(Frame, ShowsAByteThatWasDamagedOnTheWay) {
  test::forSeeds(300, [](Random& random) {
    const Frame frame = drawnFrame(random);
    std::vector<std::byte> piece = test::randomBytes(random, frame.sizeBytes);
    const FrameHeader header = encode(frame, piece);
    FrameHeader damaged = header;
    damaged[pick(random, damaged.size())] ^= static_cast<std::byte>(1U << pick(random, 8));
    EXPECT_FALSE(parseFrame(damaged).ok());
    if (piece.empty()) return;
    piece[pick(random, piece.size())] ^= static_cast<std::byte>(1U << pick(random, 8));
    EXPECT_FALSE(isWhole(header, piece));
  });
}

// With the check that its sender would have given it.
Status refusalOf(uint8_t kind, uint8_t zero, uint32_t size) {
  FrameHeader header{};
  header[0] = std::byte{kind};
  header[1] = std::byte{zero};
  std::memcpy(header.data() + 4, &size, sizeof size);
  const auto check = static_cast<uint16_t>(wire::crc32c(header));
  std::memcpy(header.data() + 2, &check, sizeof check);
  return parseFrame(header).status();
}

TEST(Frame, ThatNoMachineSendsIsRefused) {
  EXPECT_TRUE(refusalOf(1, 0, 0).ok());
  EXPECT_TRUE(refusalOf(4, 0, kMostPieceBytes).ok());
  for (const uint8_t kind : {5, 6, 7}) EXPECT_TRUE(refusalOf(kind, 0, 0).ok());
  EXPECT_TRUE(refusalOf(8, 0, 24).ok());
  for (const Status& why : {refusalOf(0, 0, 0), refusalOf(9, 0, 0), refusalOf(9, 0, 24)})
    EXPECT_EQ("a frame of a summation service has an unknown kind", why.message());
  for (const Status& why :
       {refusalOf(8, 0, 0), refusalOf(1, 1, 0), refusalOf(1, 0, 1), refusalOf(2, 0, 1), refusalOf(3, 0, 0),
        refusalOf(4, 0, kMostPieceBytes + 1), refusalOf(5, 0, 1), refusalOf(6, 0, 1), refusalOf(7, 0, 1)})
    EXPECT_EQ(Code::kDataLoss, why.code());
}

}  // namespace
}  // namespace treadle::summation::frame_test

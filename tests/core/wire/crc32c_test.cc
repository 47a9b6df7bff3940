#include "treadle/core/wire/crc32c.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "tests/support/bytes.h"
#include "treadle/core/wire/crc32c_x86.h"

namespace treadle::wire::crc32c_test {
namespace {

std::vector<std::byte> bytesOf(const std::vector<int>& values) {
  std::vector<std::byte> bytes;
  for (int value : values) bytes.push_back(static_cast<std::byte>(value));
  return bytes;
}

// The definition, bit by bit.
uint32_t oracle(Bytes bytes) {
  uint32_t crc = ~0U;
  for (std::byte byte : bytes) {
    crc ^= static_cast<uint32_t>(byte);
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0x82F63B78 : 0);
  }
  return ~crc;
}

struct Vector {
  std::vector<std::byte> bytes;
  uint32_t crc;
};

// RFC 3720, appendix B.4.
std::vector<Vector> rfcVectors() {
  std::vector<int> rising(32), falling(32);
  std::iota(rising.begin(), rising.end(), 0);
  std::reverse_copy(rising.begin(), rising.end(), falling.begin());
  std::vector<int> readCommand = {0x01, 0xc0, 0, 0, 0, 0, 0,    0, 0,    0, 0, 0,    0, 0, 0, 0,
                                  0x14, 0,    0, 0, 0, 0, 0x04, 0, 0,    0, 0, 0x14, 0, 0, 0, 0x18,
                                  0x28, 0,    0, 0, 0, 0, 0,    0, 0x02, 0, 0, 0,    0, 0, 0, 0};
  return {{bytesOf(std::vector<int>(32, 0)), 0x8A9136AA},
          {bytesOf(std::vector<int>(32, 0xFF)), 0x62A8AB43},
          {bytesOf(rising), 0x46DD794E},
          {bytesOf(falling), 0x113FDB5C},
          {bytesOf(readCommand), 0xD9963A56}};
}

TEST(Crc32c, knowsTheVectorsOfRfc3720OnBothPaths) {
  for (const Vector& vector : rfcVectors()) {
    EXPECT_EQ(vector.crc, crc32c(vector.bytes));
    EXPECT_EQ(vector.crc, crc32cPortable(vector.bytes));
  }
}

TEST(Crc32c, ofNothingIsWhatCameBefore) {
  EXPECT_EQ(0U, crc32c({}));
  EXPECT_EQ(0x12345678U, crc32c({}, 0x12345678));
}

TEST(Crc32c, bothPathsAgreeWithTheDefinitionAtEveryLengthAndAlignment) {
  test::forSeeds(20, [](test::Random& random) {
    std::vector<std::byte> bytes = test::randomBytes(random, 300);
    for (size_t offset = 0; offset < 9; ++offset) {
      Bytes part = Bytes(bytes).subspan(offset, test::pick(random, bytes.size() - offset));
      ASSERT_EQ(oracle(part), crc32c(part));
      ASSERT_EQ(oracle(part), crc32cPortable(part));
      // In two steps it is the same.
      size_t cut = test::pick(random, part.size() + 1);
      ASSERT_EQ(oracle(part), crc32c(part.subspan(cut), crc32c(part.first(cut))));
      ASSERT_EQ(oracle(part), crc32cPortable(part.subspan(cut), crc32cPortable(part.first(cut))));
    }
  });
}

// Long stretches are summed in parts of 768, 12,288 and 256 bytes: around every boundary of these, by every way that
// this processor has.
TEST(Crc32c, ofLongStretchesIsThatOfTheDefinitionAndACopyIsExact) {
  using Way = uint32_t (*)(Bytes, std::byte*, uint32_t);
  std::vector<Way> ways;
#if defined(__x86_64__)
  if (x86::hasCrcInstruction()) ways.push_back(&x86::inThrees);
  if (x86::hasWideMultiplication()) ways.push_back(&x86::byFolding);
#endif
  test::forSeeds(200, [&](test::Random& random) {
    constexpr size_t kParts[] = {0, 256, 512, 768, 1024, 1536, 12'288, 13'056, 24'576};
    const size_t size = kParts[test::pick(random, std::size(kParts))] + test::pick(random, 70);
    std::vector<std::byte> bytes = test::randomBytes(random, size + 8), copy(size + 9);
    Bytes part = Bytes(bytes).subspan(test::pick(random, 8), size);
    const auto before = static_cast<uint32_t>(random());
    const uint32_t expected = crc32cPortable(part, before);
    ASSERT_EQ(oracle(part), crc32cPortable(part));
    ASSERT_EQ(expected, crc32c(part, before));
    for (Way way : ways) ASSERT_EQ(expected, ~way(part, nullptr, ~before));
    MutableBytes room = MutableBytes(copy).subspan(test::pick(random, 8), size);
    ASSERT_EQ(expected, copyWithCrc32c(room, part, before));
    ASSERT_TRUE(std::equal(part.begin(), part.end(), room.begin()));
    for (Way way : ways) {
      std::fill(copy.begin(), copy.end(), std::byte{0});
      ASSERT_EQ(expected, ~way(part, room.data(), ~before));
      ASSERT_TRUE(std::equal(part.begin(), part.end(), room.begin()));
    }
    ASSERT_EQ(std::byte{0}, copy.back()) << "it wrote beyond the end";
  });
}

}  // namespace
}  // namespace treadle::wire::crc32c_test

// Writer and Reader are mirrors, and a Reader believes nothing.
#include "treadle/core/wire/reader.h"

#include <limits>
#include <variant>

#include "tests/support/seeds.h"
#include "treadle/core/wire/writer.h"

namespace treadle::wire::reader_test {
namespace {

using Value = std::variant<uint8_t, int16_t, uint32_t, int64_t, float, double, bool, std::string>;

Value randomValue(test::Random& random) {
  switch (test::pick(random, 8)) {
    case 0: return static_cast<uint8_t>(random());
    case 1: return static_cast<int16_t>(random());
    case 2: return static_cast<uint32_t>(random());
    case 3: return static_cast<int64_t>(random());
    case 4: return static_cast<float>(random()) / 3;
    case 5: return static_cast<double>(random()) / 7;
    case 6: return test::pick(random, 2) == 1;
    default: return std::string(test::pick(random, 20), static_cast<char>(random()));
  }
}

void write(Writer& writer, const Value& value) {
  std::visit(
      [&]<class T>(const T& held) {
        if constexpr (std::is_same_v<T, std::string>) {
          writer.string(held);
        } else if constexpr (std::is_same_v<T, bool>) {
          writer.number(static_cast<uint8_t>(held));
        } else {
          writer.number(held);
        }
      },
      value);
}

// Reads a value of the same kind as `like`.
Value read(Reader& reader, const Value& like) {
  return std::visit(
      [&]<class T>(const T&) -> Value {
        if constexpr (std::is_same_v<T, std::string>) {
          return reader.string(100);
        } else if constexpr (std::is_same_v<T, bool>) {
          return reader.boolean();
        } else {
          return reader.number<T>();
        }
      },
      like);
}

TEST(WriterAndReader, areMirrorsForAnySequence) {
  test::forSeeds(300, [](test::Random& random) {
    std::vector<Value> values(test::pick(random, 30));
    Writer writer;
    for (Value& value : values) write(writer, value = randomValue(random));
    Reader reader(writer.bytes());
    for (const Value& value : values) ASSERT_EQ(value, read(reader, value));
    EXPECT_TRUE(reader.finished("the values").ok());
  });
}

// Cut anywhere, a sequence reads as its whole values in front of the cut, then as a failure and zeros for good.
TEST(Reader, isBadForGoodFromTheCutOn) {
  test::forSeeds(50, [](test::Random& random) {
    std::vector<Value> values(10);
    Writer writer;
    for (Value& value : values) write(writer, value = randomValue(random));
    for (size_t cut = 0; cut < writer.size(); ++cut) {
      Reader reader(writer.bytes().first(cut));
      for (const Value& value : values) {
        Value got = read(reader, value);
        if (reader.ok()) {
          ASSERT_EQ(value, got);
        }
      }
      ASSERT_FALSE(reader.ok());
      EXPECT_EQ(0U, reader.left());
      EXPECT_EQ(0U, reader.number<uint64_t>());
      EXPECT_EQ("", reader.string(100));
      EXPECT_TRUE(reader.raw(0).empty());
      EXPECT_EQ(Code::kDataLoss, reader.status("the values").code());
    }
  });
}

TEST(Reader, saysWhatEndedTooEarlyAndWhatIsTooLong) {
  Writer writer;
  writer.number(uint32_t{1});
  Reader early(writer.bytes());
  (void)early.number<uint64_t>();
  EXPECT_NE(std::string::npos, early.status("a greeting").message().find("a greeting"));
  Reader rest(writer.bytes());
  (void)rest.number<uint16_t>();
  EXPECT_TRUE(rest.status("x").ok());
  EXPECT_NE(std::string::npos, rest.finished("a greeting").message().find("2 bytes too many"));
}

TEST(Reader, takesOnlyZeroAndOneForABoolean) {
  for (int byte = 0; byte < 256; ++byte) {
    auto raw = static_cast<std::byte>(byte);
    Reader reader(Bytes(&raw, 1));
    EXPECT_EQ(byte == 1, reader.boolean());
    EXPECT_EQ(byte <= 1, reader.ok());
  }
}

TEST(Reader, refusesAStringOverTheLimitEvenWhenItIsThere) {
  Writer writer;
  writer.string("seven..");
  Reader reader(writer.bytes());
  EXPECT_EQ("", reader.string(6));
  EXPECT_FALSE(reader.ok());
}

// What a container may reserve is bounded by the bytes that are left, whatever the count says.
TEST(Reader, boundsACountByWhatIsLeft) {
  Writer writer;
  writer.number(uint32_t{3});
  for (int i = 0; i < 24; ++i) writer.number(uint8_t{0});
  EXPECT_EQ(3U, Reader(writer.bytes()).count(8));
  Reader tooLarge(writer.bytes());
  EXPECT_EQ(0U, tooLarge.count(9));
  EXPECT_FALSE(tooLarge.ok());
  writer.patch(0, std::numeric_limits<uint32_t>::max());
  Reader hostile(writer.bytes());
  EXPECT_EQ(0U, hostile.count(1));
  EXPECT_FALSE(hostile.ok());
}

TEST(Reader, survivesAnyReadsOfAnyBytes) {
  test::forSeeds(2000, [](test::Random& random) {
    std::vector<std::byte> bytes(test::pick(random, 60));
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(test::pick(random, 4) == 0 ? random() : 0);
    Reader reader(bytes);
    for (int i = 0; i < 20; ++i) {
      size_t before = reader.left();
      if (test::pick(random, 4) == 0) {
        ASSERT_LE(reader.count(1 + test::pick(random, 16)), before);
      } else {
        Value got = read(reader, randomValue(random));
        if (auto* text = std::get_if<std::string>(&got)) {
          ASSERT_LE(text->size(), before);
        }
      }
      ASSERT_LE(reader.left(), before);
    }
  });
}

TEST(Writer, isLittleEndianAndPatchesInPlace) {
  Writer writer;
  writer.number(uint32_t{0});
  writer.string("ab");
  writer.patch(0, uint32_t{0x04030201});
  std::vector<std::byte> bytes = writer.take();
  std::vector<int> expected = {1, 2, 3, 4, 2, 0, 0, 0, 'a', 'b'};
  ASSERT_EQ(expected.size(), bytes.size());
  for (size_t i = 0; i < bytes.size(); ++i) EXPECT_EQ(expected[i], static_cast<int>(bytes[i]));
}

}  // namespace
}  // namespace treadle::wire::reader_test

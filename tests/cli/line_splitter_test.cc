#include "treadle/cli/line_splitter.h"

#include <random>

#include "gtest/gtest.h"

namespace treadle::cli::line_splitter_test {
namespace {

using Strings = std::vector<std::string>;

// What comes out when the bytes arrive in pieces of `size`, the rest at the end included.
Strings linesOf(std::string_view bytes, size_t size = std::string::npos) {
  LineSplitter splitter;
  Strings lines;
  for (size_t at = 0; at < bytes.size(); at += std::min(size, bytes.size() - at))
    splitter.feed(bytes.substr(at, size), lines);
  if (!splitter.unfinished().empty()) lines.push_back(splitter.takeUnfinished());
  return lines;
}

TEST(LineSplitter, cutsAtLineEndsHoweverTheBytesArrive) {
  const std::vector<std::pair<std::string, Strings>> cases = {
      {"", {}},
      {"a\nb\n", {"a", "b"}},
      {"a\nb", {"a", "b"}},
      {"\n\n", {"", ""}},
      {"dos\r\nend\r\n", {"dos", "end"}},
      {"many\r\r\n", {"many"}},
      {"\r10%\r20%\r100%\n", {"100%"}},
      {"10%\r20%\r", {"20%"}},
      {"bar\rdone\nnext\n", {"done", "next"}},
      {std::string("nul\0in\n", 7), {std::string("nul\0in", 6)}},
  };
  for (const auto& [bytes, lines] : cases) {
    EXPECT_EQ(lines, linesOf(bytes)) << bytes;
    for (size_t size : {1u, 2u, 3u}) EXPECT_EQ(lines, linesOf(bytes, size)) << bytes;
  }
}

TEST(LineSplitter, showsTheLastStateOfABarAsUnfinished) {
  LineSplitter splitter;
  Strings lines;
  splitter.feed("\r10%", lines);
  EXPECT_EQ("10%", splitter.unfinished());
  splitter.feed("\r20%\r", lines);
  EXPECT_EQ("20%", splitter.unfinished());
  splitter.feed("30", lines);
  EXPECT_EQ("30", splitter.unfinished());
  EXPECT_TRUE(lines.empty());
}

TEST(LineSplitter, cutsALineThatIsTooLongAndLosesNothing) {
  std::mt19937 random(20261121);
  std::string bytes(3 * LineSplitter::kMaxLineBytes + 17, '\0');
  for (char& byte : bytes) byte = static_cast<char>('a' + random() % 26);
  Strings lines = linesOf(bytes, 1000);
  std::string all;
  for (const std::string& line : lines) {
    EXPECT_LE(line.size(), LineSplitter::kMaxLineBytes);
    all += line;
  }
  EXPECT_EQ(4u, lines.size());
  EXPECT_EQ(bytes, all);
}

TEST(LineSplitter, tearsNoCharacterApart) {
  for (size_t shift : {0u, 1u, 2u, 3u}) {
    std::string bytes(shift, 'x');
    while (bytes.size() < 2 * LineSplitter::kMaxLineBytes) bytes += "\xF0\x9F\x9A\x82";  // four bytes
    Strings lines = linesOf(bytes, 4096);
    EXPECT_EQ(shift, lines.front().size() % 4);
    for (size_t i = 1; i < lines.size(); ++i) EXPECT_EQ(0xF0, static_cast<unsigned char>(lines[i].front()));
  }
}

TEST(LineSplitter, endsWhateverBytesComeIn) {
  std::string bytes(4 * LineSplitter::kMaxLineBytes, '\x80');  // continuation bytes without a beginning
  size_t sum = 0;
  for (const std::string& line : linesOf(bytes)) sum += line.size();
  EXPECT_EQ(bytes.size(), sum);
}

}  // namespace
}  // namespace treadle::cli::line_splitter_test

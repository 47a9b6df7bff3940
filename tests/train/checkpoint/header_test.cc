// What a safetensors header may and may not hold. No tensor library: header.cc has to stay usable without
// one.

#include "treadle/train/checkpoint/header.h"

#include <gtest/gtest.h>

#include <limits>
#include <random>

#include "tests/support/places.h"
#include "tests/train/checkpoint/temp_folder.h"

namespace treadle::safetensors::header_test {
namespace {

std::string entry(const std::string& name, const std::string& dtype, const std::string& shape,
                  const std::string& offsets) {
  return "\"" + name + "\":{\"dtype\":" + dtype + ",\"shape\":" + shape + ",\"data_offsets\":" + offsets + "}";
}

std::array<std::byte, kLengthBytes> lengthBytes(uint64_t value) {
  std::array<std::byte, kLengthBytes> bytes{};
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(value >> (8 * i));
  return bytes;
}

TEST(Header, ReadsTensorsInTheOrderOfTheirOffsetsWithMetadata) {
  std::string json = "{" + entry("second", "\"I16\"", "[2,1]", "[4,8]") + "," +
                     entry("first", "\"F32\"", "[]", "[0,4]") + ",\"__metadata__\":{\"by\":\"hand\"}}   ";
  Result<Header> header = parseHeader(json, 8);
  ASSERT_TRUE(header.ok()) << header.status().toString();
  ASSERT_EQ(header->tensors.size(), 2u);
  EXPECT_EQ(header->tensors[0].name, "first");
  EXPECT_EQ(header->tensors[0].type, ElementType::kF32);
  EXPECT_TRUE(header->tensors[0].shape.empty());
  EXPECT_EQ(header->tensors[1].shape, (std::vector<int64_t>{2, 1}));
  EXPECT_EQ(header->tensors[1].begin, 4u);
  EXPECT_EQ(header->tensors[1].end, 8u);
  EXPECT_EQ(header->metadata, (std::map<std::string, std::string>{{"by", "hand"}}));
}

TEST(Header, KnowsEveryElementTypeByTheFormatsName) {
  for (size_t i = 0; i < kElementInfos.size(); ++i) {
    std::string size = std::to_string(kElementInfos[i].sizeBytes);
    std::string json =
        "{" + entry("t", "\"" + std::string(kElementInfos[i].name) + "\"", "[1]", "[0," + size + "]") + "}";
    Result<Header> header = parseHeader(json, kElementInfos[i].sizeBytes);
    ASSERT_TRUE(header.ok()) << header.status().toString();
    EXPECT_EQ(header->tensors[0].type, static_cast<ElementType>(i));
  }
}

TEST(Header, EmptyTensorsAndEmptyFilesAreFine) {
  EXPECT_TRUE(parseHeader("{}", 0).ok());
  std::string json = "{" + entry("a", "\"F64\"", "[0,7]", "[0,0]") + "," + entry("b", "\"U8\"", "[3]", "[0,3]") + "," +
                     entry("c", "\"F64\"", "[0]", "[3,3]") + "}";
  Result<Header> header = parseHeader(json, 3);
  EXPECT_TRUE(header.ok()) << header.status().toString();
}

struct BadHeader {
  std::string json;
  uint64_t dataBytes;
  std::string reason;  // part of the message
};

std::vector<BadHeader> wrongJson() {
  return {
      {"", 0, "does not begin with '{'"},
      {" {}", 0, "does not begin with '{'"},
      {"\xef\xbb\xbf{}", 0, "does not begin with '{'"},
      {"[]", 0, "does not begin with '{'"},
      {"{", 0, "no valid JSON, from byte"},
      {"{}x", 0, "no valid JSON, from byte 3"},
      {"{}{}", 0, "no valid JSON"},
      {"{\"a\":NaN}", 0, "no valid JSON"},
      {"{\"\xff\":{}}", 0, "no valid JSON"},
      {"{\"a\":" + std::string(100'000, '[') + "}", 0, "the entry of tensor \"a\" is an array"},
      {"{\"a\":" + std::string(100'000, '{') + "}", 0, "no valid JSON"},
      {"{\"a\":null}", 0, "the entry of tensor \"a\" is null"},
      {"{\"a\":true}", 0, "the entry of tensor \"a\" is a boolean"},
      {"{\"a\":1}", 0, "the entry of tensor \"a\" is a number"},
      {"{\"a\":\"x\"}", 0, "the entry of tensor \"a\" is a string"},
      {"{\"__metadata__\":3}", 0, "\"__metadata__\" is a number"},
      {"{\"__metadata__\":{\"k\":3}}", 0, "the metadata value of \"k\" is a number"},
      {"{\"__metadata__\":{\"k\":{}}}", 0, "the metadata value of \"k\" is an object"},
      {"{\"__metadata__\":{\"k\":\"\",\"k\":\"\"}}", 0, "the key \"k\" twice"},
      {"{\"__metadata__\":{},\"__metadata__\":{}}", 0, "\"__metadata__\" twice"},
  };
}

std::vector<BadHeader> wrongEntries() {
  std::string good = entry("a", "\"U8\"", "[1]", "[0,1]");
  return {
      {"{" + good + "," + good + "}", 1, "tensor \"a\" twice"},
      {"{\"a\":{}}", 0, "no field \"dtype\""},
      {"{\"a\":{\"dtype\":\"U8\",\"data_offsets\":[0,0]}}", 0, "no field \"shape\""},
      {"{\"a\":{\"dtype\":\"U8\",\"shape\":[0]}}", 0, "no field \"data_offsets\""},
      {"{\"a\":{\"dtype\":\"U8\",\"dtype\":\"U8\"}}", 0, "the field \"dtype\" twice"},
      {"{\"a\":{\"strides\":[1]}}", 0, "the field \"strides\", which the format does not know"},
      {"{" + entry("a", "\"F128\"", "[1]", "[0,16]") + "}", 16, "dtype \"F128\" of tensor \"a\" is unknown"},
      {"{" + entry("a", "7", "[1]", "[0,1]") + "}", 1, "the dtype of tensor \"a\" is a number"},
      {"{" + entry("a", "\"U8\"", "1", "[0,1]") + "}", 1, "the shape of tensor \"a\" is a number"},
      {"{" + entry("a", "\"U8\"", "[-1]", "[0,1]") + "}", 1, "the shape of tensor \"a\" holds a negative number"},
      {"{" + entry("a", "\"U8\"", "[1.0]", "[0,1]") + "}", 1, "holds a number that is no 64-bit integer"},
      {"{" + entry("a", "\"U8\"", "[1e0]", "[0,1]") + "}", 1, "holds a number that is no 64-bit integer"},
      {"{" + entry("a", "\"U8\"", "[99999999999999999999]", "[0,1]") + "}", 1, "no 64-bit integer"},
      {"{" + entry("a", "\"U8\"", "[9223372036854775808]", "[0,1]") + "}", 1, "holds 9223372036854775808"},
      {"{" + entry("a", "\"U8\"", "[[1]]", "[0,1]") + "}", 1, "the shape of tensor \"a\" holds an array"},
      {"{" + entry("a", "\"U8\"", "[1]", "[0]") + "}", 1, "are not two numbers"},
      {"{" + entry("a", "\"U8\"", "[1]", "[0,1,2]") + "}", 1, "are more than two numbers"},
      {"{" + entry("a", "\"U8\"", "[1]", "[-1,0]") + "}", 1,
       "the data_offsets of tensor \"a\" holds a negative number"},
  };
}

std::vector<BadHeader> wrongOffsets() {
  std::string manyOnes = "[1";
  for (size_t i = 0; i < kMaxRank; ++i) manyOnes += ",1";
  return {
      {"{" + entry("a", "\"U8\"", manyOnes + "]", "[0,1]") + "}", 1, "more than 64 dimensions"},
      {"{" + entry("a", "\"U8\"", "[1]", "[1,0]") + "}", 1, "end before they begin"},
      {"{" + entry("a", "\"U8\"", "[2]", "[0,2]") + "}", 1, "of which there are only 1"},
      {"{" + entry("a", "\"U8\"", "[1]", "[0,18446744073709551615]") + "}", 1, "of which there are only 1"},
      {"{" + entry("a", "\"F32\"", "[2]", "[0,4]") + "}", 4, "need 8 bytes"},
      {"{" + entry("a", "\"F32\"", "[0]", "[0,4]") + "}", 4, "need 0 bytes"},
      {"{" + entry("a", "\"U8\"", "[1]", "[1,2]") + "}", 2, "leaves a gap"},
      {"{" + entry("a", "\"U8\"", "[2]", "[0,2]") + "," + entry("b", "\"U8\"", "[2]", "[1,3]") + "}", 3, "overlap"},
      {"{" + entry("a", "\"U8\"", "[1]", "[0,1]") + "}", 4, "3 bytes at its end belong to no tensor"},
      {"{}", 1, "1 bytes at its end belong to no tensor"},
      {"{" + entry("a", "\"U8\"", "[4294967296,4294967296]", "[0,0]") + "}", 0, "more elements than can be addressed"},
      {"{" + entry("a", "\"F64\"", "[2305843009213693952]", "[0,0]") + "}", 0, "more elements than can be addressed"},
      // Empty, but libtorch would compute its strides and overflow.
      {"{" + entry("a", "\"U8\"", "[0,9223372036854775807,2]", "[0,0]") + "}", 0,
       "more elements than can be addressed"},
  };
}

void expectRefused(const BadHeader& bad) {
  Result<Header> header = parseHeader(bad.json, bad.dataBytes);
  std::string shown = bad.json.substr(0, 120);
  ASSERT_FALSE(header.ok()) << shown;
  EXPECT_EQ(header.status().code(), Code::kDataLoss) << shown;
  EXPECT_NE(header.status().message().find(bad.reason), std::string::npos) << shown << "\n"
                                                                           << header.status().message();
  EXPECT_EQ(header.status().message().find('\n'), std::string::npos) << "one line";
}

TEST(Header, RefusesWrongJson) {
  for (const BadHeader& bad : wrongJson()) expectRefused(bad);
}

TEST(Header, RefusesWrongEntries) {
  for (const BadHeader& bad : wrongEntries()) expectRefused(bad);
}

TEST(Header, RefusesOffsetsThatDoNotTileTheData) {
  for (const BadHeader& bad : wrongOffsets()) expectRefused(bad);
}

TEST(Header, TheLengthIsBoundedBeforeAnythingIsRead) {
  EXPECT_EQ(*parseHeaderLength(lengthBytes(2), 10), 2u);
  EXPECT_EQ(*parseHeaderLength(lengthBytes(0), 8), 0u);
  for (uint64_t length : {uint64_t{3}, kMaxHeaderBytes, kMaxHeaderBytes + 1, uint64_t{1} << 63, ~uint64_t{0}}) {
    Result<uint64_t> parsed = parseHeaderLength(lengthBytes(length), 10);
    ASSERT_FALSE(parsed.ok()) << length;
    EXPECT_EQ(parsed.status().code(), Code::kDataLoss);
  }
}

TEST(Header, NamesInMessagesAreEscapedAndCut) {
  EXPECT_EQ(inQuotes("a\n\x1b[31m"), "\"a\\n\\u001b[31m\"");
  EXPECT_LE(inQuotes(std::string(100'000, 'x')).size(), 100u);
  EXPECT_EQ(inQuotes("\xff"), "\"\\ufffd\"");
}

TEST(Header, WhatIsWrittenIsAlignedAndReadsBack) {
  Header header;
  header.metadata = {{"quote\"", "line\nbreak"}};
  header.tensors = {{"bytes", ElementType::kU8, {3}, 0, 0},
                    {"wide", ElementType::kF64, {2, 2}, 0, 0},
                    {"\xc3\xa4\"\\", ElementType::kBf16, {}, 0, 0}};
  ASSERT_TRUE(layOut(header.tensors).ok());
  Result<std::string> text = formatHeader(header);
  ASSERT_TRUE(text.ok()) << text.status().toString();
  EXPECT_EQ(text->size() % 8, 0u);
  Result<Header> back = parseHeader(text->substr(8), 32 + 2 + 3);
  ASSERT_TRUE(back.ok()) << back.status().toString();
  EXPECT_EQ(back->metadata, header.metadata);
  ASSERT_EQ(back->tensors.size(), 3u);
  EXPECT_EQ(back->tensors[0].name, "wide") << "widest elements first keeps every tensor aligned";
  EXPECT_EQ(back->tensors[1].name, "\xc3\xa4\"\\");
  EXPECT_EQ(back->tensors[2].begin, 34u);
}

TEST(Header, RefusesToWriteWhatItWouldNotRead) {
  auto formatted = [](std::string name, std::map<std::string, std::string> metadata = {}) {
    return formatHeader(Header{{{std::move(name), ElementType::kU8, {0}, 0, 0}}, std::move(metadata)}).status();
  };
  EXPECT_EQ(formatted("__metadata__").code(), Code::kInvalidArgument);
  EXPECT_EQ(formatted("\xff").code(), Code::kInvalidArgument);
  EXPECT_EQ(formatted("a", {{"k", "\xff"}}).code(), Code::kInvalidArgument);
  EXPECT_EQ(formatted(std::string(kMaxHeaderBytes, 'x')).code(), Code::kInvalidArgument);
  Header twice{{{"a", ElementType::kU8, {0}, 0, 0}, {"a", ElementType::kU8, {0}, 0, 0}}, {}};
  EXPECT_EQ(formatHeader(twice).status().code(), Code::kInvalidArgument);
  std::vector<TensorEntry> huge = {{"a", ElementType::kU8, {std::numeric_limits<int64_t>::max()}, 0, 0},
                                   {"b", ElementType::kU8, {1}, 0, 0}};
  EXPECT_EQ(layOut(huge).code(), Code::kInvalidArgument);
}

// Random damage to a good header must end in a header that keeps the promises of parseHeader, or in a
// failure.
TEST(Header, MutatedHeadersNeverBreakThePromises) {
  constexpr uint64_t kSeed = 20261;
  constexpr uint64_t kDataBytes = 24 + 12;
  std::mt19937_64 random(kSeed);
  SCOPED_TRACE("seed " + std::to_string(kSeed));
  const std::string good = "{" + entry("w", "\"F32\"", "[2,3]", "[0,24]") + "," +
                           entry("b", "\"I32\"", "[3]", "[24,36]") + ",\"__metadata__\":{\"k\":\"v\"}}";
  const std::string alphabet = "{}[]\",:0123456789-.eE+ntfaldsU8\\\xff ";
  for (int round = 0; round < 100'000; ++round) {
    std::string json = good;
    for (uint64_t edits = 1 + random() % 4; edits > 0 && !json.empty(); --edits) {
      size_t at = random() % json.size();
      char with = alphabet[random() % alphabet.size()];
      switch (random() % 3) {
        case 0: json[at] = with; break;
        case 1: json.erase(at, 1 + random() % 3); break;
        default: json.insert(at, 1, with);
      }
    }
    Result<Header> header = parseHeader(json, kDataBytes);
    if (!header.ok()) continue;
    uint64_t covered = 0;
    for (const TensorEntry& tensor : header->tensors) {
      ASSERT_EQ(tensor.begin, covered) << json;
      covered = tensor.end;
    }
    ASSERT_EQ(covered, kDataBytes) << json;
  }
}

// The corpus of the fuzzer (tests/fuzz/safetensors_fuzz.cc): each a byte with the size of the data and then a header.
TEST(Header, TheFuzzersCorpusIsReadOrRefused) {
  int readable = 0, files = 0;
  for (const auto& file : std::filesystem::directory_iterator(test::sourcePath("tests/fuzz/corpus/safetensors"))) {
    std::string bytes = readFile(file.path());
    ASSERT_FALSE(bytes.empty()) << file.path();
    ++files;
    readable += parseHeader(std::string_view(bytes).substr(1), static_cast<unsigned char>(bytes[0])).ok();
  }
  EXPECT_GE(files, 9);
  EXPECT_GE(readable, 5);
}

}  // namespace
}  // namespace treadle::safetensors::header_test

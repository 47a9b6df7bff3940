// Sets of sends: as sets of numbers would be, on the wire and back, and refused when a peer did not write them so.

#include "treadle/tensor/autograd/lineage.h"

#include <gtest/gtest.h>

#include <set>

#include "tests/support/seeds.h"

namespace treadle::autograd::lineage_test {
namespace {

using Sends = std::set<std::pair<int, int64_t>>;

Lineage lineageOf(const Sends& sends) {
  Lineage lineage;
  for (const auto& [rank, number] : sends) lineage.add(rank, number);
  return lineage;
}

Sends sendsOf(const Lineage& lineage) {
  Sends sends;
  for (int rank : lineage.ranks())
    for (int64_t number : lineage.numbers(rank)) EXPECT_TRUE(sends.emplace(rank, number).second);
  return sends;
}

std::vector<std::byte> written(const Lineage& lineage) {
  wire::Writer writer;
  lineage.write(writer);
  return writer.take();
}

Result<Lineage> read(Bytes bytes) {
  wire::Reader reader(bytes);
  Result<Lineage> lineage = Lineage::read(reader);
  Status whole = reader.finished("a lineage");
  return lineage.ok() && !whole.ok() ? whole : lineage;
}

Sends someSends(test::Random& random) {
  Sends sends;
  for (size_t left = test::pick(random, 40); left > 0; --left) {
    const auto far = static_cast<int64_t>(test::pick(random, 4) == 0 ? Lineage::kNumbers - 300 : 0);
    sends.emplace(static_cast<int>(test::pick(random, 4)), far + static_cast<int64_t>(test::pick(random, 300)));
  }
  return sends;
}

TEST(Lineage, isASetOfSends) {
  test::forSeeds(500, [](test::Random& random) {
    const Sends one = someSends(random), other = someSends(random);
    Sends both = one;
    both.insert(other.begin(), other.end());
    Lineage lineage = lineageOf(one);
    EXPECT_EQ(sendsOf(lineage), one);
    EXPECT_EQ(lineage.contains(lineageOf(other)), both == one);
    lineage.unite(lineageOf(other));
    EXPECT_EQ(sendsOf(lineage), both);
    EXPECT_TRUE(lineage.contains(lineageOf(other)));
    EXPECT_EQ(lineage.empty(), both.empty());
    for (int rank = 0; rank < 4; ++rank) {
      const auto last = both.lower_bound({rank + 1, 0});
      const bool none = last == both.begin() || std::prev(last)->first != rank;
      EXPECT_EQ(lineage.end(rank), none ? 0 : std::prev(last)->second + 1);
    }
  });
}

TEST(Lineage, travels) {
  test::forSeeds(500, [](test::Random& random) {
    const Sends sends = someSends(random);
    Result<Lineage> back = read(written(lineageOf(sends)));
    ASSERT_TRUE(back.ok()) << back.status().toString();
    EXPECT_EQ(sendsOf(*back), sends);
  });
}

TEST(Lineage, takesABitForEachSend) {
  constexpr int64_t kSends = 100'000;
  Lineage lineage;
  for (int64_t number = 0; number < kSends; ++number)
    if (number % 3 != 0) lineage.add(2, number);
  EXPECT_LE(written(lineage).size(), kSends / 8 + 32);
}

TEST(Lineage, thatAPeerDidNotWriteSoIsRefused) {
  const std::vector<std::byte> whole = written(lineageOf({{0, 3}, {2, 70}, {2, 500}}));
  for (size_t size = 0; size < whole.size(); ++size)
    EXPECT_FALSE(read(Bytes(whole).first(size)).ok()) << size << " of " << whole.size() << " bytes";
  using Numbers = std::vector<std::pair<uint32_t, std::vector<std::pair<uint32_t, std::vector<uint64_t>>>>>;
  const auto bytesOf = [](const Numbers& ranks) {
    wire::Writer writer;
    writer.number(static_cast<uint32_t>(ranks.size()));
    for (const auto& [rank, runs] : ranks) {
      writer.number(rank);
      writer.number(static_cast<uint32_t>(runs.size()));
      for (const auto& [first, words] : runs) {
        writer.number(first);
        writer.number(static_cast<uint32_t>(words.size()));
        for (uint64_t word : words) writer.number(word);
      }
    }
    return writer.take();
  };
  EXPECT_TRUE(read(bytesOf({{0, {{1, {5}}, {3, {1, 2}}}}, {7, {{UINT32_MAX, {1}}}}})).ok());
  EXPECT_FALSE(read(bytesOf({{1, {{0, {1}}}}, {1, {{5, {1}}}}})).ok()) << "a worker twice";
  EXPECT_FALSE(read(bytesOf({{3, {{0, {1}}}}, {1, {{5, {1}}}}})).ok()) << "not in order";
  EXPECT_FALSE(read(bytesOf({{0x80000000, {{0, {1}}}}})).ok()) << "no rank";
  EXPECT_FALSE(read(bytesOf({{0, {}}})).ok()) << "a worker without sends";
  EXPECT_FALSE(read(bytesOf({{0, {{0, {}}}}})).ok()) << "a run of nothing";
  EXPECT_FALSE(read(bytesOf({{0, {{0, {1, 0, 1}}}}})).ok()) << "a word of nothing";
  EXPECT_FALSE(read(bytesOf({{0, {{4, {1}}, {4, {1}}}}})).ok()) << "runs over each other";
  EXPECT_FALSE(read(bytesOf({{0, {{4, {1}}, {5, {1}}}}})).ok()) << "two runs that are one";
  EXPECT_FALSE(read(bytesOf({{0, {{UINT32_MAX, {1, 1}}}}})).ok()) << "over the end";
  const std::vector<uint64_t> most(Lineage::kMost / 64, UINT64_MAX);
  EXPECT_TRUE(read(bytesOf({{0, {{0, most}}}})).ok());
  EXPECT_FALSE(read(bytesOf({{0, {{0, most}}}, {1, {{0, {1}}}}})).ok()) << "more than there can be";
}

}  // namespace
}  // namespace treadle::autograd::lineage_test

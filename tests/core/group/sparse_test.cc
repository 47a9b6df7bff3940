// Sparse all-reduces by definition: the dense sum, whatever rows members have.

#include <cstring>

#include "tests/core/group/reductions.h"
#include "tests/core/group/sparse_rows.h"
#include "treadle/core/group/half.h"

namespace treadle::sparse_test {
namespace {

using group::SparseShape;
using test::contains;
using test::failureOf;
using test::GroupJob;
using test::SparseMember;
using test::SparseMembers;

// Which rows a member has.
enum class Pattern { kNone, kNoneOnSome, kSame, kFull, kDisjoint, kRandom, kTwice };
constexpr Pattern kPatterns[] = {Pattern::kNone,     Pattern::kNoneOnSome, Pattern::kSame, Pattern::kFull,
                                 Pattern::kDisjoint, Pattern::kRandom,     Pattern::kTwice};

std::vector<uint64_t> rowsOf(Pattern pattern, size_t rank, size_t members, uint64_t rows, test::Random& random) {
  std::vector<uint64_t> indices;
  if (pattern == Pattern::kNone || (pattern == Pattern::kNoneOnSome && rank % 2 == 1)) return indices;
  for (uint64_t row = 0; row < rows; ++row) {
    const bool has = pattern == Pattern::kFull || (pattern == Pattern::kSame && row % 7 == 3) ||
                     (pattern == Pattern::kDisjoint && row % members == rank) ||
                     (pattern == Pattern::kNoneOnSome && row % 100 == 0);
    if (has) indices.push_back(row);
  }
  const bool isDrawn = pattern == Pattern::kRandom || pattern == Pattern::kTwice;
  for (uint64_t i = 0; isDrawn && i < rows / 10; ++i) indices.push_back(test::pick(random, rows));
  if (pattern == Pattern::kTwice) {
    const std::vector<uint64_t> once = indices;
    indices.insert(indices.end(), once.begin(), once.end());
  }
  return indices;
}

template <class T>
SparseMembers<T> membersWith(Pattern pattern, size_t size, const SparseShape& shape, test::Random& random) {
  SparseMembers<T> members(size);
  for (size_t rank = 0; rank < size; ++rank)
    for (uint64_t row : rowsOf(pattern, rank, size, shape.rows(), random))
      members[rank].add(row, shape.width(), static_cast<T>(test::pick(random, 20)));
  return members;
}

const SparseShape kShapes[] = {{{500, 3}, 1}, {{20, 25}, 2}, {{1, 64}, 1}, {{300, 0}, 1},
                               {{0, 5}, 1},   {{3}, 0},      {{}, 0}};

class SparseSizes : public ::testing::TestWithParam<int> {};

TEST_P(SparseSizes, SumTheRowsOfAllMembers) {
  const auto size = static_cast<size_t>(GetParam());
  test::Random random(test::seedOfRun());
  GroupJob job(GetParam());
  // With the starts; in chunks; some so and some so; and directly in any group, as the order of ranks needs it.
  for (const GroupOptions& options : {GroupOptions{}, GroupOptions{.smallBytes = 0, .chunkBytes = 64},
                                      GroupOptions{.smallBytes = 1000, .chunkBytes = 1000},
                                      GroupOptions{.algorithm = Algorithm::kDirect, .sumOrder = SumOrder::kRank}}) {
    const std::vector<ProcessGroup> groups = job.makeAll(options);
    for (Pattern pattern : kPatterns)
      for (const SparseShape& shape : kShapes) {
        SCOPED_TRACE(shape.text() + ", pattern " + std::to_string(static_cast<int>(pattern)));
        auto doubles = membersWith<double>(pattern, size, shape, random);
        sumOfAll(groups, shape, doubles);
        expectSums(shape, doubles);
        auto integers = membersWith<int64_t>(pattern, size, shape, random);
        sumOfAll(groups, shape, integers, ReduceOp::kAverage);
        expectSums(shape, integers, GetParam());
      }
  }
}

// Each member lacks every third row, and each number is another one.
template <class T>
void checkNumbers(const std::vector<ProcessGroup>& groups, ReduceOp op) {
  const SparseShape shape{{101, 3}, 1};
  const size_t size = groups.size();
  SparseMembers<T> members(size);
  std::vector<uint64_t> rows;
  std::vector<T> sums;
  for (uint64_t row = 0; row < shape.rows(); ++row) {
    const auto has = [&](size_t rank) { return (row + rank) % 3 > 0; };
    if (size == 1 && !has(0)) continue;
    rows.push_back(row);
    for (size_t rank = 0; rank < size; ++rank)
      if (has(rank)) members[rank].indices.push_back(row);
    for (size_t i = row * shape.width(); i < (row + 1) * shape.width(); ++i) {
      std::vector<T> values(size);  // 0 where a member has none
      for (size_t rank = 0; rank < size; ++rank) {
        if (!has(rank)) continue;
        values[rank] = test::NumbersOf<T>::of(op, static_cast<int>(rank), static_cast<int>(size), i);
        members[rank].values.push_back(values[rank]);
      }
      sums.push_back(test::NumbersOf<T>::reduced(op, values));
    }
  }
  sumOfAll(groups, shape, members, op);
  for (const auto& member : members) {
    ASSERT_EQ(member.sumIndices(shape.width()), rows);
    const std::vector<T> is = member.sumValues(shape.width());
    ASSERT_EQ(std::memcmp(is.data(), sums.data(), sums.size() * sizeof(T)), 0)
        << group::nameOf(group::DataTypeOf<T>::kValue) << " (" << group::nameOf(op) << ")";
  }
}

TEST_P(SparseSizes, SumEveryTypeByItsDefinition) {
  GroupJob job(GetParam());
  for (const GroupOptions& options : {GroupOptions{}, GroupOptions{.smallBytes = 0, .chunkBytes = 64}}) {
    const std::vector<ProcessGroup> groups = job.makeAll(options);
    test::forEachNumberType([&]<class T>(T) {
      if constexpr (!std::is_same_v<T, group::Bool>) {
        for (ReduceOp op : {ReduceOp::kSum, ReduceOp::kAverage}) checkNumbers<T>(groups, op);
      }
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Sparse, SparseSizes, ::testing::Values(1, 2, 3, 4, 5, 6, 7, 8, 9, 17, 21));

TEST(Sparse, LargeRowsGoInManyChunks) {
  const SparseShape shape{{100'000, 16}, 1};
  test::Random random(test::seedOfRun());
  GroupJob job(3, {.sendBufferBytes = 16 << 10});
  const std::vector<ProcessGroup> groups = job.makeAll();
  auto members = membersWith<float>(Pattern::kRandom, 3, shape, random);
  sumOfAll(groups, shape, members);
  expectSums(shape, members);
}

// They and other operations keep their order.
TEST(Sparse, HundredsAreInFlightAmongOtherOperations) {
  constexpr size_t kRounds = 150, kMembers = 3;
  const SparseShape shape{{40, 2}, 1};
  test::Random random(test::seedOfRun());
  GroupJob job(static_cast<int>(kMembers));
  for (size_t smallBytes : {size_t{0}, size_t{1} << 16}) {
    const std::vector<ProcessGroup> groups = job.makeAll({.smallBytes = smallBytes});
    std::vector<SparseMembers<float>> rounds;
    std::vector<std::vector<float>> dense;
    for (size_t i = 0; i < kRounds; ++i)
      rounds.push_back(membersWith<float>(Pattern::kRandom, kMembers, shape, random));
    for (size_t i = 0; i < kRounds * kMembers; ++i) dense.emplace_back(100, 1.0F);
    std::vector<Future<void>> futures;
    for (size_t rank = 0; rank < kMembers; ++rank)
      for (size_t i = 0; i < kRounds; ++i) {
        futures.push_back(rounds[i][rank].start(groups[rank], shape));
        if (i % 3 == 0) futures.push_back(allReduce(groups[rank], std::span(dense[i * kMembers + rank])));
      }
    test::waitAll(futures);
    for (const auto& members : rounds) expectSums(shape, members);
    for (size_t i = 0; i < kRounds * kMembers; ++i) ASSERT_EQ(dense[i][0], i / kMembers % 3 == 0 ? 3 : 1);
  }
}

template <class T>
class SparseHalves : public ::testing::Test {};
using Halves = ::testing::Types<group::Float16, group::BFloat16>;
TYPED_TEST_SUITE(SparseHalves, Halves);

// Each member has many parts of one row. Their sum is exact in float, and neither type has it.
TYPED_TEST(SparseHalves, AreRoundedOnce) {
  constexpr size_t kParts = 20;
  const SparseShape shape{{10, 1}, 1};
  for (const auto& [size, smallBytes] : {std::pair<size_t, size_t>{3, 0}, {3, 1 << 16}, {21, 0}, {21, 1 << 16}}) {
    GroupJob job(static_cast<int>(size));
    for (ReduceOp op : {ReduceOp::kSum, ReduceOp::kAverage}) {
      const std::vector<ProcessGroup> groups = job.makeAll({.smallBytes = smallBytes});
      SparseMembers<TypeParam> members(size);
      for (size_t rank = 0; rank < size; ++rank)
        for (size_t part = 0; part < kParts; ++part) {
          members[rank].indices.push_back(7);
          members[rank].values.push_back(group::rounded<TypeParam>(part == 0 ? 1000 : 0.25));
        }
      const auto before = members[0].values;
      sumOfAll(groups, shape, members, op);
      const auto want = group::rounded<TypeParam>(op == ReduceOp::kSum ? static_cast<double>(size) * 1004.75 : 1004.75);
      for (const auto& member : members) {
        EXPECT_EQ(member.sumIndices(1), std::vector<uint64_t>{7});
        EXPECT_EQ(member.sumValues(1).front().bits, want.bits);
      }
      EXPECT_EQ(std::memcmp(members[0].values.data(), before.data(), before.size() * 2), 0) << "the input stays";
    }
  }
}

uint64_t bytesSent(GroupJob& job, int rank) {
  uint64_t bytes = 0;
  for (int peer = 0; peer < job.size(); ++peer)
    bytes += valueOrThrow(job.local().worker(rank).membership->channels(peer)).unixSockets.sentBytes;
  return bytes;
}

// A bit for each row comes on top.
TEST(SparseCost, IsThatOfADenseAllReduceForDenseData) {
  constexpr uint64_t kRows = 40'960, kWidth = 32;  // 40 runs for each member
  const SparseShape shape{{kRows, kWidth}, 1};
  GroupJob job(4);
  const std::vector<ProcessGroup> groups = job.makeAll();
  SparseMembers<float> members(4);
  for (auto& member : members)
    for (uint64_t row = 0; row < kRows; ++row) member.add(row, kWidth, 1);
  const uint64_t before = bytesSent(job, 0);
  sumOfAll(groups, shape, members);
  constexpr uint64_t kRange = kRows / 4, kBitmapBytes = (kRange + 63) / 64 * 8;
  EXPECT_EQ(bytesSent(job, 0) - before, 2 * 3 * (kRange * kWidth * sizeof(float) + kBitmapBytes));
  expectSums(shape, members);
}

// What members have in common travels once to each.
TEST(SparseCost, IsThatOfTheOwnRowsAndOfTheirUnion) {
  constexpr uint64_t kRows = 1'024'000, kWidth = 32, kOwn = 800;  // one row in every fifth run
  const SparseShape shape{{kRows, kWidth}, 1};
  GroupJob job(4);
  const std::vector<ProcessGroup> groups = job.makeAll({.smallBytes = 0});
  SparseMembers<float> members(4);
  for (auto& member : members)
    for (uint64_t i = 0; i < kOwn; ++i) member.add(i * (kRows / kOwn), kWidth, 1);
  const uint64_t before = bytesSent(job, 0);
  sumOfAll(groups, shape, members);
  EXPECT_EQ(bytesSent(job, 0) - before, 3 * 2 * (kOwn / 4) * (kWidth * sizeof(float) + sizeof(uint64_t)));
  expectSums(shape, members);
}

// In a vocabulary by frequency, the words of a text come first. All lie in the first quarter here.
TEST(SparseCost, IsThatOfEvenRowsWhenRowsCrowdTogether) {
  constexpr uint64_t kRows = 65'536, kWidth = 16, kOwn = 4'096, kMembers = 4;
  const SparseShape shape{{kRows, kWidth}, 1};
  GroupJob job(static_cast<int>(kMembers));
  const std::vector<ProcessGroup> groups = job.makeAll();
  SparseMembers<float> members(kMembers);
  for (uint64_t rank = 0; rank < kMembers; ++rank)
    for (uint64_t i = 0; i < kOwn; ++i) members[rank].add(kMembers * i + rank, kWidth, 1);
  std::vector<uint64_t> before;
  for (int rank = 0; rank < job.size(); ++rank) before.push_back(bytesSent(job, rank));
  sumOfAll(groups, shape, members);
  // A quarter of the own rows to each other member, and a quarter of the union, each with its bitmap.
  constexpr uint64_t kUnion = kMembers * kOwn, kBitmapBytes = kRows / kMembers / 8;
  constexpr uint64_t kBytes = (kOwn + kUnion) / kMembers * kWidth * sizeof(float) + 2 * kBitmapBytes;
  for (int rank = 0; rank < job.size(); ++rank)
    EXPECT_EQ(bytesSent(job, rank) - before[static_cast<size_t>(rank)], (kMembers - 1) * kBytes) << rank;
  expectSums(shape, members);
}

// One row of which each member has one value, as a sparse and as a dense sum.
template <class T>
void expectDenseBits(const std::vector<T>& values, ReduceOp op) {
  GroupJob job(static_cast<int>(values.size()));
  const std::vector<ProcessGroup> groups = job.makeAll();
  SparseMembers<T> members(values.size());
  std::vector<std::vector<T>> dense;
  for (size_t rank = 0; rank < values.size(); ++rank) {
    members[rank].indices.push_back(7);
    members[rank].values.push_back(values[rank]);
    dense.push_back({values[rank]});
  }
  sumOfAll(groups, {{10, 1}, 1}, members, op);
  std::vector<Future<void>> futures;
  for (size_t rank = 0; rank < values.size(); ++rank)
    futures.push_back(allReduce(groups[rank], std::span(dense[rank]), op));
  test::waitAll(futures);
  for (size_t rank = 0; rank < values.size(); ++rank) {
    const std::vector<T> sums = members[rank].sumValues(1);
    EXPECT_EQ(std::memcmp(sums.data(), dense[rank].data(), sizeof(T)), 0) << rank;
  }
}

// Integers that wrap around, and halves whose sum needs more digits than a float has.
TEST(Sparse, HasTheBitsOfADenseSum) {
  const auto half = [](double value) { return group::rounded<group::Float16>(value); };
  const auto brain = [](double value) { return group::rounded<group::BFloat16>(value); };
  for (ReduceOp op : {ReduceOp::kSum, ReduceOp::kAverage}) {
    expectDenseBits<int8_t>({100, 100, 77}, op);
    expectDenseBits<uint16_t>({65'535, 2, 9}, op);
    expectDenseBits<group::Float16>({half(2048), half(1), half(0x1p-14)}, op);
    expectDenseBits<group::BFloat16>({brain(256), brain(1), brain(0x1p-17)}, op);
    expectDenseBits<float>({1.0F / 3, 1e8F, -1e8F}, op);
  }
}

// The same sum in other blocks and chunks: rows are added by rank. Thirds have another sum in another order.
TEST(Sparse, HasTheSameBitsInEverySizeOfChunks) {
  const SparseShape shape{{200, 3}, 1};
  test::Random random(test::seedOfRun());
  GroupJob job(4);
  SparseMembers<double> members(4);
  for (auto& member : members)
    for (int i = 0; i < 300; ++i) member.add(test::pick(random, 200), 3, 1.0 / static_cast<double>(3 + i));
  std::vector<double> first;
  for (size_t smallBytes : {size_t{0}, size_t{1} << 16})
    for (size_t chunkBytes : {size_t{64}, size_t{1} << 18}) {
      sumOfAll(job.makeAll({.smallBytes = smallBytes, .chunkBytes = chunkBytes}), shape, members);
      if (first.empty()) first = members[0].sumValues(3);
      for (const auto& member : members) ASSERT_EQ(member.sumValues(3), first);
    }
}

TEST(SparseCheck, RefusesAtOnceWhatCannotBeSummed) {
  GroupJob job(2);
  const ProcessGroup group = job.make(0);
  SparseMember<float> member;
  member.add(3, 2, 1);
  const auto refused = [&](const SparseShape& shape, ReduceOp op = ReduceOp::kSum) {
    return test::messageOf<ArgumentError>([&] { member.start(group, shape, op); });
  };
  EXPECT_TRUE(contains(refused({{4, 2}, 1}, ReduceOp::kMax), "no max"));
  EXPECT_TRUE(contains(refused({{3, 2}, 1}), "row 3 is not in [3, 2] with 1 sparse dimension, which has 3 rows"));
  EXPECT_TRUE(contains(refused({{4, 3}, 1}), "the values have 8 bytes, which are not 1 rows of [4, 3]"));
  EXPECT_TRUE(contains(refused({{4, 0}, 1}), "the values have 8 bytes"));
  EXPECT_TRUE(contains(refused({{4, 2}, 3}), "at most as many sparse ones as dimensions"));
  EXPECT_TRUE(contains(refused({{4, 2, uint64_t{1} << 56}, 1}), "more elements than can be counted"));
  EXPECT_TRUE(contains(refused({{uint64_t{1} << 40, uint64_t{1} << 40, 0}, 2}), "more elements than can be counted"));
  EXPECT_TRUE(contains(refused({std::vector<uint64_t>(65, 1), 1}), "at most 64 dimensions"));
  SparseMember<group::Bool> truths;
  EXPECT_TRUE(contains(test::messageOf<ArgumentError>([&] { truths.start(group, {{4}, 1}); }), "bool have no sum"));
  const ProcessGroup ring = job.make(0, {.name = "ring", .algorithm = Algorithm::kRing});
  EXPECT_TRUE(contains(test::messageOf<ArgumentError>([&] { member.start(ring, {{4, 2}, 1}); }),
                       "the algorithm 'ring' cannot do sparseAllReduce (sum) of 8 float32 in [4, 2]"));
}

}  // namespace
}  // namespace treadle::sparse_test

// Sparse all-reduces of more than 16 members: along the tree while rows are small, and directly after all where they
// are not. Their sums by definition are in sparse_test.cc.

#include <cstring>
#include <set>

#include "tests/core/group/sparse_rows.h"
#include "tests/core/group/strange_member.h"
#include "tests/core/group/tapped_job.h"

namespace treadle::sparse_tree_test {
namespace {

using group::Message;
using group::MessageKind;
using group::SparseShape;
using test::failureOf;
using test::SparseMember;
using test::SparseMembers;
using test::TappedJob;

constexpr int kMembers = 21;  // 5 levels, and no power of two
constexpr uint64_t kWidth = 2;
const SparseShape kShape{{4'000, kWidth}, 1};

// `rows` of a member, that nobody else has.
void addRows(SparseMembers<float>& members, int rank, uint64_t rows) {
  for (uint64_t i = 0; i < rows; ++i)
    members[static_cast<size_t>(rank)].add(i * kMembers + static_cast<uint64_t>(rank), kWidth,
                                           static_cast<float>(rank));
}

TEST(SparseTree, SmallRowsTakeAMessageUpAndOneDown) {
  TappedJob job(kMembers);
  SparseMembers<float> members(kMembers);
  for (int rank = 0; rank < kMembers; ++rank) addRows(members, rank, 3);
  const int before = job.messages();
  sumOfAll(job.groups(), kShape, members);
  expectSums(kShape, members);
  EXPECT_EQ(job.messages() - before, 2 * (kMembers - 1));
}

// Each row of `rank` takes 16 bytes on the way up: its number and two floats.
struct Crowd {
  const char* name;
  std::vector<std::pair<int, uint64_t>> rows;  // of these ranks
};
const Crowd kCrowds[] = {
    {"OnALeaf", {{19, 70}}},
    {"OnTheRoot", {{0, 70}}},
    {"OnAMemberWithChildren", {{8, 70}}},
    {"OfTwoThatMeetBelowTheRoot", {{17, 40}, {18, 40}}},
    {"OfTwoThatMeetAtTheRoot", {{3, 40}, {12, 40}}},
    {"OnAll", {{0, 70}, {3, 70}, {8, 70}, {12, 70}, {16, 70}, {20, 70}}},
};
class SparseCrowd : public ::testing::TestWithParam<std::tuple<Crowd, size_t>> {};

TEST_P(SparseCrowd, IsDealtAfterAll) {
  const auto& [crowd, chunkBytes] = GetParam();
  TappedJob job(kMembers, {.smallBytes = 1024, .chunkBytes = chunkBytes});
  SparseMembers<float> members(kMembers);
  for (int rank = 0; rank < kMembers; ++rank) addRows(members, rank, 1);
  for (const auto& [rank, rows] : crowd.rows) addRows(members, rank, rows);
  // Twice, with a small one between them.
  for (int round = 0; round < 2; ++round) {
    const int before = job.messages();
    sumOfAll(job.groups(), kShape, members);
    expectSums(kShape, members);
    EXPECT_GE(job.messages() - before, 2 * (kMembers - 1) + 2 * kMembers * (kMembers - 1)) << "shares and results";
    SparseMembers<float> few(kMembers);
    addRows(few, 5, 3);
    sumOfAll(job.groups(), kShape, few);
    expectSums(kShape, few);
  }
}

INSTANTIATE_TEST_SUITE_P(Crowds, SparseCrowd,
                         ::testing::Combine(::testing::ValuesIn(kCrowds), ::testing::Values(64, 4096)),
                         [](const auto& info) {
                           return std::string(std::get<0>(info.param).name) + std::to_string(std::get<1>(info.param));
                         });

// The bits are the same on all members, whoever adds them.
TEST(SparseTree, SumsAreTheSameOnAllMembers) {
  TappedJob job(kMembers);
  SparseMembers<float> members(kMembers);
  for (size_t rank = 0; rank < kMembers; ++rank) {
    members[rank].indices = {1, 5};
    members[rank].values = {1e8F / static_cast<float>(rank + 1), 0.1F, 0.3F * static_cast<float>(rank), -1e7F};
  }
  sumOfAll(job.groups(), kShape, members);
  for (const auto& member : members) EXPECT_EQ(member.sumValues(kWidth), members[0].sumValues(kWidth));
}

// What a member does not get before it is killed.
struct Phase {
  const char* name;
  bool isLarge;
  std::function<bool(const Message&)> isHeld;  // and what follows from the same member
};
const Phase kPhases[] = {
    {"Begun", false, [](const Message&) { return true; }},
    {"Started", true, [](const Message& message) { return message.kind != MessageKind::kStart; }},
    {"Dealt", true, [](const Message& message) { return message.kind == MessageKind::kChunk; }},
    {"NoSums", true, [](const Message& message) { return message.kind == MessageKind::kResult; }},
};
class SparseTreePhase : public ::testing::TestWithParam<std::tuple<Phase, int>> {};

// Rank 20 is a leaf below 16, 8 has children, and 0 is the root.
TEST_P(SparseTreePhase, InWhichAMemberIsKilledFailsTheOthersOrGivesThemTheSums) {
  const auto& [phase, victim] = GetParam();
  TappedJob job(kMembers, {.smallBytes = phase.isLarge ? 64U : 65'536U, .chunkBytes = 64});
  SparseMembers<float> members(kMembers);
  for (int rank = 0; rank < kMembers; ++rank) addRows(members, rank, 30);
  job.hold(victim, [&isHeld = phase.isHeld, silent = std::set<int>()](int from, const Message& message) mutable {
    if (isHeld(message)) silent.insert(from);
    return silent.contains(from);
  });
  std::vector<Future<void>> futures;
  for (int rank = 0; rank < kMembers; ++rank)
    futures.push_back(members[static_cast<size_t>(rank)].start(job.group(rank), kShape));
  job.waitUntilHeld(victim, 1);
  job.kill(victim);
  int failed = 0;
  for (int rank = 0; rank < kMembers; ++rank) {
    if (rank == victim) continue;
    const Status why = failureOf(futures[static_cast<size_t>(rank)]);
    if (why.ok()) continue;
    ++failed;
    EXPECT_EQ(why.code(), Code::kPeerLost) << why.toString();
    EXPECT_EQ(why.worker(), TappedJob::nameOf(victim)) << why.toString();
  }
  const bool isNeeded = phase.isLarge || victim != 20;
  if (isNeeded) {
    EXPECT_GT(failed, 0) << "the others need it";
  }
  for (int rank = 0; rank < kMembers; ++rank)
    if (rank != victim) TappedJob::expectLoss(barrier(job.group(rank)), victim);
}

INSTANTIATE_TEST_SUITE_P(Phases, SparseTreePhase,
                         ::testing::Combine(::testing::ValuesIn(kPhases), ::testing::Values(0, 8, 20)),
                         [](const auto& info) {
                           return std::string(std::get<0>(info.param).name) + "Rank" +
                                  std::to_string(std::get<1>(info.param));
                         });

// Rank 1, a child of rank 0, sends what no member does. The other children never begin.
class StrangeSparseTree : public test::StrangeMember {
 protected:
  StrangeSparseTree() { size_ = kMembers; }
  GroupOptions options() const override { return {.smallBytes = 256, .chunkBytes = 64}; }
  Future<void> begin() override {
    own_.add(7, kWidth, 1);
    Future<void> summed = own_.start(group_, kShape);
    // Rank 0 says nothing before its children do. From this the strange member learns the number of the group.
    sent_ = send(group_, Bytes(), 1);
    return summed;
  }

  static Message start(uint64_t rows) {
    Message message;
    message.description.operation = group::OperationKind::kSparseAllReduce;
    message.description.dataType = group::DataType::kFloat32;
    message.description.count = kShape.rows() * kWidth;
    message.description.smallBytes = 256;
    message.description.chunkBytes = 64;
    message.description.algorithm = Algorithm::kTree;
    message.description.shape = kShape.text();
    message.elements = rows;
    return message;
  }
  static Message of(MessageKind kind, uint64_t rows) {
    Message message;
    message.kind = kind;
    message.elements = rows;
    return message;
  }
  // Rows of ones, whose words are these.
  static std::vector<std::byte> rowsOf(const std::vector<uint64_t>& words, size_t rows) {
    const std::vector<float> values(kWidth * rows, 1);
    std::vector<std::byte> bytes(words.size() * 8 + values.size() * 4);
    std::memcpy(bytes.data(), words.data(), words.size() * 8);
    std::memcpy(bytes.data() + words.size() * 8, values.data(), values.size() * 4);
    return bytes;
  }

  SparseMember<float> own_;
  Future<void> sent_;
};

TEST_F(StrangeSparseTree, MoreRowsThanTravelWithAStart) {
  sendWith(start(17), {});
  expectCutOff("more rows than go with a message");
}

TEST_F(StrangeSparseTree, MoreRowsThanThereAre) {
  sendWith(start(4'001), {});
  expectCutOff("4001 rows of a range of 4000");
}

TEST_F(StrangeSparseTree, RowsAlthoughTheyAreTooMany) {
  sendWith(start(UINT64_MAX), rowsOf({1}, 1));
  expectCutOff("rows of a range of 4000");
}

TEST_F(StrangeSparseTree, ARowBehindTheRange) {
  sendWith(start(2), rowsOf({7, 4'000}, 2));
  expectCutOff("rows outside of their range, or out of order");
}

TEST_F(StrangeSparseTree, ARowTwice) {
  sendWith(start(2), rowsOf({7, 7}, 2));
  expectCutOff("rows outside of their range, or out of order");
}

TEST_F(StrangeSparseTree, AShareBeforeItsStart) {
  sendWith(of(MessageKind::kShare, 0), {});
  expectCutOff("data of an operation that it had not begun");
}

TEST_F(StrangeSparseTree, AShareBeforeAllHaveBegun) {
  sendWith(start(UINT64_MAX), {});
  sendWith(of(MessageKind::kShare, 0), {});
  expectCutOff("a share where none was due");
}

TEST_F(StrangeSparseTree, AResultBeforeAllHaveBegun) {
  sendWith(start(1), rowsOf({1}, 1));
  sendWith(of(MessageKind::kResult, 0), {});
  expectCutOff("a result where none was due");
}

TEST_F(StrangeSparseTree, AStartTwice) {
  sendWith(start(1), rowsOf({1}, 1));
  sendWith(start(1), rowsOf({1}, 1));
  expectCutOff("twice");
}

}  // namespace
}  // namespace treadle::sparse_tree_test

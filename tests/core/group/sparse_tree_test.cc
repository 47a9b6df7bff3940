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

constexpr int kMembers = 21;     // 5 levels, and no power of two
constexpr uint64_t kWidth = 32;  // a row takes 136 bytes on its way up
const SparseShape kShape{{8'000, kWidth}, 1};

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

struct Crowd {
  const char* name;
  std::vector<std::pair<int, uint64_t>> rows;  // of these ranks; seven are small
};
// 300 rows of a member are large in the range of each.
const Crowd kCrowds[] = {
    {"OnALeaf", {{19, 300}, {4, 1}}},
    {"OnTheRoot", {{0, 300}}},
    {"OnAMemberWithChildren", {{8, 300}, {9, 1}}},
    {"OfTwoThatMeetBelowTheRoot", {{17, 4}, {18, 4}}},
    {"OfTwoThatMeetAtTheRoot", {{3, 4}, {12, 4}}},
    {"OnSome", {{0, 100}, {3, 100}, {8, 100}, {12, 100}, {16, 100}, {20, 100}}},
};
class SparseCrowd : public ::testing::TestWithParam<std::tuple<Crowd, size_t>> {};

TEST_P(SparseCrowd, IsDealtAfterAll) {
  const auto& [crowd, chunkBytes] = GetParam();
  TappedJob job(kMembers, {.smallBytes = 1024, .chunkBytes = chunkBytes});
  SparseMembers<float> members(kMembers), few(kMembers);
  for (const auto& [rank, rows] : crowd.rows) addRows(members, rank, rows);
  addRows(few, 5, 3);
  for (int round = 0; round < 2; ++round) {
    const int before = job.messages();
    sumOfAll(job.groups(), kShape, members);
    expectSums(kShape, members);
    EXPECT_GE(job.messages() - before, 2 * (kMembers - 1) + 2 * kMembers * (kMembers - 1)) << "shares and results";
    sumOfAll(job.groups(), kShape, few);
    expectSums(kShape, few);
  }
}

INSTANTIATE_TEST_SUITE_P(Crowds, SparseCrowd,
                         ::testing::Combine(::testing::ValuesIn(kCrowds), ::testing::Values(64, 4096)),
                         [](const auto& info) {
                           return std::string(std::get<0>(info.param).name) + std::to_string(std::get<1>(info.param));
                         });

// Each token of a text has a row, and few words are different.
TEST(SparseTree, RowsCountOnceForHowManyThereAre) {
  TappedJob job(kMembers, {.smallBytes = 1024});
  SparseMembers<float> members(kMembers);
  for (int again = 0; again < 50; ++again)
    for (int rank = 0; rank < kMembers; ++rank) members[static_cast<size_t>(rank)].add(7, kWidth, 1);
  const int before = job.messages();
  sumOfAll(job.groups(), kShape, members);
  expectSums(kShape, members);
  EXPECT_EQ(job.messages() - before, 2 * (kMembers - 1));
}

// Rank 20 gets the shares of all others before its parent's start, which says that all have begun.
TEST(SparseTree, SharesMayComeBeforeTheStartOfTheParent) {
  for (size_t smallBytes : {size_t{64}, size_t{1024}}) {
    TappedJob job(kMembers, {.smallBytes = smallBytes, .chunkBytes = 64});
    SparseMembers<float> members(kMembers);
    for (int rank = 0; rank < kMembers; ++rank) addRows(members, rank, 20);
    const int before = job.seen(20);
    job.hold(20, [](int from, const Message&) { return from == 16; });
    std::vector<Future<void>> futures;
    for (int rank = 0; rank < kMembers; ++rank)
      futures.push_back(members[static_cast<size_t>(rank)].start(job.group(rank), kShape));
    job.waitUntilSeen(20, before + 1 + kMembers - 1);  // a start, and shares
    EXPECT_FALSE(futures[20].ready());
    job.letGo();
    test::waitAll(futures);
    expectSums(kShape, members);
  }
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
// Rank 20 is a leaf below 16, 8 has children, and 0 is the root.
class SparseTreePhase : public ::testing::TestWithParam<std::tuple<Phase, int>> {
 protected:
  SparseTreePhase() {
    for (int rank = 0; rank < kMembers; ++rank) addRows(members_, rank, 30);
  }

  static const Phase& phase() { return std::get<Phase>(GetParam()); }
  static int victim() { return std::get<int>(GetParam()); }
  // Whether the others need what the victim does in this phase.
  static bool isNeeded() { return phase().isLarge || victim() != 20; }
  static GroupOptions options() { return {.smallBytes = phase().isLarge ? 64U : 65'536U, .chunkBytes = 64}; }

  // The victim gets what the phase allows. The others have a limit.
  std::vector<Future<void>> start(TappedJob& job, Duration limit) {
    job.hold(victim(), [silent = std::set<int>()](int from, const Message& message) mutable {
      if (phase().isHeld(message)) silent.insert(from);
      return silent.contains(from);
    });
    std::vector<Future<void>> futures;
    for (int rank = 0; rank < kMembers; ++rank) {
      const ProcessGroup group = job.group(rank).withTimeout(rank == victim() ? kNoTimeout : limit);
      futures.push_back(members_[static_cast<size_t>(rank)].start(group, kShape));
    }
    return futures;
  }
  // Why the operation failed on the other members; those on which it ended well have the sums.
  std::vector<Status> failures(const std::vector<Future<void>>& futures) {
    std::vector<Status> failures;
    for (int rank = 0; rank < kMembers; ++rank) {
      if (rank == victim()) continue;
      Status why = failureOf(futures[static_cast<size_t>(rank)]);
      if (why.ok()) {
        expectSumsOf(members_[static_cast<size_t>(rank)], kShape, members_);
      } else {
        failures.push_back(std::move(why));
      }
    }
    return failures;
  }

  SparseMembers<float> members_ = SparseMembers<float>(kMembers);
};

TEST_P(SparseTreePhase, InWhichAMemberIsKilledFailsTheOthersOrGivesThemTheSums) {
  TappedJob job(kMembers, options());
  const std::vector<Future<void>> futures = start(job, kNoTimeout);
  job.waitUntilHeld(victim(), 1);
  job.kill(victim());
  const std::vector<Status> why = failures(futures);
  for (const Status& one : why) {
    EXPECT_EQ(one.code(), Code::kPeerLost) << one.toString();
    EXPECT_EQ(one.worker(), TappedJob::nameOf(victim())) << one.toString();
  }
  EXPECT_TRUE(!isNeeded() || !why.empty()) << "the others need it";
  for (int rank = 0; rank < kMembers; ++rank)
    if (rank != victim()) TappedJob::expectLoss(barrier(job.group(rank)), victim());
}

TEST_P(SparseTreePhase, InWhichAMemberStopsIsNamedAtTheDeadlineAndTheGroupGoesOn) {
  EXPECT_TRUE(test::withLongerLimits(std::chrono::milliseconds(500), [&](Duration limit) {
    TappedJob job(kMembers, options());
    const std::vector<Future<void>> futures = start(job, limit);
    auto named = isNeeded() ? ::testing::AssertionFailure() << "nobody names it" : ::testing::AssertionSuccess();
    for (const Status& why : failures(futures)) {
      EXPECT_EQ(why.code(), Code::kDeadlineExceeded) << why.toString();
      // Whose limit has passed first says why, to all; on a busy machine it may be another reason.
      if (test::contains(why.message(), "worker '" + TappedJob::nameOf(victim()) + "'"))
        named = ::testing::AssertionSuccess();
    }
    job.letGo();
    const Status late = failureOf(futures[static_cast<size_t>(victim())]);
    EXPECT_TRUE(late.ok() || late.code() == Code::kDeadlineExceeded) << late.toString();
    sumOfAll(job.groups(), kShape, members_);
    expectSums(kShape, members_);
    return named;
  }));
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
  GroupOptions options() const override { return {.smallBytes = 300, .chunkBytes = 64}; }
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
    message.description.smallBytes = 300;
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
  sendWith(start(3), {});
  expectCutOff("more rows than go with a message");
}

TEST_F(StrangeSparseTree, MoreRowsThanThereAre) {
  sendWith(start(8'001), {});
  expectCutOff("8001 rows of a range of 8000");
}

TEST_F(StrangeSparseTree, RowsAlthoughTheyAreTooMany) {
  sendWith(start(UINT64_MAX), rowsOf({1}, 1));
  expectCutOff("rows of a range of 8000");
}

TEST_F(StrangeSparseTree, ARowBehindTheRange) {
  sendWith(start(2), rowsOf({7, 8'000}, 2));
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

// The strange member is the root, and the other one its first child, a leaf.
class StrangeSparseRoot : public StrangeSparseTree {
 protected:
  std::vector<std::string> members() const override { return strangerFirst(); }
  Future<void> begin() override {
    for (uint64_t row = 0; row < rows_; ++row) own_.add(row, kWidth, 1);
    return own_.start(group_, kShape);
  }
  // The start that the member has sent up, with other rows.
  Message startDown(uint64_t rows) const {
    Message message = start(rows);
    EXPECT_EQ(message.description, first_.description);
    return message;
  }

  uint64_t rows_ = 1;
};

TEST_F(StrangeSparseRoot, PlaysTheRoot) {
  EXPECT_EQ(first_.elements, 1U);
  sendWith(startDown(2), rowsOf({0, 7'999}, 2));
  EXPECT_TRUE(failureOf(future_).ok());
  EXPECT_EQ(own_.sumIndices(kWidth), (std::vector<uint64_t>{0, 7'999}));
}

TEST_F(StrangeSparseRoot, SumsThatDoNotTravelWithAStart) {
  sendWith(startDown(3), {});
  expectCutOff("more rows than go with a message");
}

TEST_F(StrangeSparseRoot, SumsOutOfOrder) {
  sendWith(startDown(2), rowsOf({7, 7}, 2));
  expectCutOff("rows outside of their range, or out of order");
}

TEST_F(StrangeSparseRoot, TwoShares) {
  sendWith(of(MessageKind::kShare, 0), {});
  sendWith(of(MessageKind::kShare, 0), {});
  expectCutOff("a share where none was due");
}

TEST_F(StrangeSparseRoot, AShareOfMoreRowsThanTheRange) {
  sendWith(of(MessageKind::kShare, 8'000), {});
  expectCutOff("8000 rows of a range of");
}

TEST_F(StrangeSparseRoot, AResultBeforeItsStart) {
  sendWith(of(MessageKind::kShare, 0), {});
  sendWith(of(MessageKind::kResult, 0), {});
  expectCutOff("a result where none was due");
}

TEST_F(StrangeSparseRoot, AChunkThatNoShareAnnounces) {
  Message chunk;
  chunk.kind = MessageKind::kChunk;
  sendWith(std::move(chunk), std::vector<std::byte>(64));
  expectCutOff("a chunk where none was due");
}

class StrangeSparseRootOfMany : public StrangeSparseRoot {
 protected:
  StrangeSparseRootOfMany() { rows_ = 50; }
};

TEST_F(StrangeSparseRootOfMany, SumsAlthoughTheRowsWereTooMany) {
  EXPECT_EQ(first_.elements, UINT64_MAX);
  sendWith(startDown(1), rowsOf({1}, 1));
  expectCutOff("sums of rows that were too many");
}

}  // namespace
}  // namespace treadle::sparse_tree_test

// Sparse all-reduces whose members disagree, are lost, are late or give up, and what no member would send.

#include <cstring>

#include "tests/core/group/sparse_rows.h"
#include "tests/core/group/strange_member.h"
#include "treadle/core/group/group_core.h"

namespace treadle::sparse_failure_test {
namespace {

using group::Message;
using group::MessageKind;
using group::SparseShape;
using std::chrono::seconds;
using test::contains;
using test::failureOf;
using test::GroupJob;
using test::SparseMember;
using test::SparseMembers;
using test::withLongerLimits;

class SparseMismatch : public ::testing::Test {
 protected:
  SparseMismatch() {
    for (auto& member : members_)
      for (uint64_t row : {0, 5, 11}) member.add(row, 1, 1);
  }

  // The operation of rank 2 differs.
  void expectMismatch(Future<void> third, const std::string& one, const std::string& other) {
    std::vector<Future<void>> futures = {members_[0].start(groups_[0], shape_), members_[1].start(groups_[1], shape_),
                                         std::move(third)};
    for (Future<void>& future : futures) {
      const Status why = failureOf(future);
      EXPECT_EQ(why.code(), Code::kInvalidArgument) << why.toString();
      for (const std::string& part : {one, other, std::string("worker 'w2' (rank 2)")})
        EXPECT_TRUE(contains(why.message(), part)) << why.message();
    }
    // The group goes on.
    sumOfAll(groups_, shape_, members_);
    expectSums(shape_, members_);
  }

  const SparseShape shape_{{12, 1}, 1};
  GroupJob job_{3};
  std::vector<ProcessGroup> groups_ = job_.makeAll({.name = "trio"});
  SparseMembers<float> members_ = SparseMembers<float>(3);
};

TEST_F(SparseMismatch, NamesBothShapes) {
  SparseMember<float> none;
  expectMismatch(none.start(groups_[2], {{3, 4}, 1}), "in [12, 1] with 1 sparse dimension",
                 "in [3, 4] with 1 sparse dimension");
  expectMismatch(none.start(groups_[2], {{13, 1}, 1}), "12 float32 in [12, 1]", "13 float32 in [13, 1]");
}

TEST_F(SparseMismatch, NamesBothNumbersOfSparseDimensions) {
  expectMismatch(members_[2].start(groups_[2], {{12, 1}, 2}), "[12, 1] with 1 sparse dimension",
                 "[12, 1] with 2 sparse dimensions");
}

TEST_F(SparseMismatch, NamesBothTypes) {
  SparseMember<int32_t> integers;
  expectMismatch(integers.start(groups_[2], shape_), "float32", "int32");
}

TEST_F(SparseMismatch, NamesBothReductions) {
  expectMismatch(members_[2].start(groups_[2], shape_, ReduceOp::kAverage), "(sum)", "(average)");
}

TEST_F(SparseMismatch, NamesBothOperations) {
  std::vector<float> dense(12);
  expectMismatch(allReduce(groups_[2], std::span(dense)), "calls sparseAllReduce (sum)", "calls allReduce (sum)");
}

TEST_F(SparseMismatch, FailsOperationsInAnotherOrder) {
  std::vector<std::vector<float>> dense(3, std::vector<float>(12));
  std::vector<Future<void>> futures;
  for (size_t rank : {0U, 1U}) {
    futures.push_back(members_[rank].start(groups_[rank], shape_));
    futures.push_back(allReduce(groups_[rank], std::span(dense[rank])));
  }
  futures.push_back(allReduce(groups_[2], std::span(dense[2])));
  futures.push_back(members_[2].start(groups_[2], shape_));
  for (Future<void>& future : futures) EXPECT_EQ(failureOf(future).code(), Code::kInvalidArgument);
  sumOfAll(groups_, shape_, members_);
  expectSums(shape_, members_);
}

// Rows for many chunks, or for one message.
SparseMembers<float> membersOf(size_t size, uint64_t rows) {
  SparseMembers<float> members(size);
  for (size_t rank = 0; rank < size; ++rank)
    for (uint64_t row = 0; row < rows; ++row) members[rank].add(4 * row + rank % 3, 8, 1);
  return members;
}
constexpr uint64_t kFew = 10, kMany = 30'000;
SparseShape shapeOf(uint64_t rows) { return {{4 * rows, 8}, 1}; }

TEST(SparseFailure, ReachesMoreThanSixteenMembers) {
  constexpr size_t kMembers = 18;
  GroupJob job(static_cast<int>(kMembers));
  const std::vector<ProcessGroup> groups = job.makeAll();
  auto members = membersOf(kMembers, kFew);
  const auto startAll = [&](const SparseShape& shapeOfLast) {
    std::vector<Future<void>> futures;
    for (size_t rank = 0; rank < kMembers; ++rank)
      futures.push_back(members[rank].start(groups[rank], rank + 1 < kMembers ? shapeOf(kFew) : shapeOfLast));
    return futures;
  };
  for (Future<void>& future : startAll({{4 * kFew, 4, 2}, 1})) {
    const Status why = failureOf(future);
    EXPECT_EQ(why.code(), Code::kInvalidArgument) << why.toString();
  }
  std::vector<Future<void>> futures;
  for (size_t rank = 1; rank < kMembers; ++rank) futures.push_back(members[rank].start(groups[rank], shapeOf(kFew)));
  futures[2].cancel();
  for (Future<void>& future : futures) EXPECT_EQ(failureOf(future).code(), Code::kCancelled);
  failureOf(members[0].start(groups[0], shapeOf(kFew))).ignore();
  sumOfAll(groups, shapeOf(kFew), members);
  expectSums(shapeOf(kFew), members);
}

TEST(SparseLoss, FailsWhenAMemberIsLostInTheMiddle) {
  test::Random random(test::seedOfRun());
  for (int round = 0; round < 10; ++round) {
    auto members = membersOf(3, kMany);
    GroupJob job(3);
    const std::vector<ProcessGroup> groups = job.makeAll();
    std::vector<Future<void>> futures;
    for (size_t rank = 0; rank < 3; ++rank) futures.push_back(members[rank].start(groups[rank], shapeOf(kMany)));
    try {
      futures[0].wait(std::chrono::microseconds(test::pick(random, 20'000)));  // somewhere in the middle, as a rule
    } catch (const TimeoutError&) {}
    job.local().kill(2);
    for (size_t rank = 0; rank < 2; ++rank) {
      const Status why = failureOf(futures[rank]);
      if (why.ok()) continue;  // it was done before
      EXPECT_EQ(why.code(), Code::kPeerLost) << why.toString();
      EXPECT_EQ(why.worker(), "w2");
    }
    EXPECT_EQ(failureOf(members[0].start(groups[0], shapeOf(kMany))).worker(), "w2");
  }
}

TEST(SparseDeadline, NamesWhoHasNotTakenPart) {
  for (uint64_t rows : {kFew, kMany})
    EXPECT_TRUE(withLongerLimits(seconds(1), [&](Duration limit) {
      GroupJob job(3);
      const std::vector<ProcessGroup> groups = job.makeAll({.timeout = limit});
      auto members = membersOf(3, rows);
      Future<void> other = members[1].start(groups[1], shapeOf(rows));
      const Status why = failureOf(members[0].start(groups[0], shapeOf(rows)));
      EXPECT_EQ(why.code(), Code::kDeadlineExceeded) << why.toString();
      EXPECT_TRUE(contains(why.message(), "worker 'w2' (rank 2)")) << why.message();
      EXPECT_FALSE(failureOf(other).ok());
      EXPECT_FALSE(failureOf(members[2].start(groups[2], shapeOf(rows))).ok()) << "it joins too late";
      // The two ranks must hear from each other within the limit.
      return !contains(why.message(), "'w1'") ? ::testing::AssertionSuccess()
                                              : ::testing::AssertionFailure() << why.message();
    }));
}

TEST(SparseDeadline, NamesTheLateOneOfMoreThanSixteenMembers) {
  constexpr size_t kMembers = 18;
  EXPECT_TRUE(withLongerLimits(seconds(1), [&](Duration limit) {
    GroupJob job(static_cast<int>(kMembers));
    const std::vector<ProcessGroup> groups = job.makeAll({.timeout = limit});
    auto members = membersOf(kMembers, kFew);
    std::vector<Future<void>> futures;
    for (size_t rank = 0; rank + 1 < kMembers; ++rank)
      futures.push_back(members[rank].start(groups[rank], shapeOf(kFew)));
    const Status why = failureOf(futures.front());
    EXPECT_EQ(why.code(), Code::kDeadlineExceeded) << why.toString();
    EXPECT_TRUE(contains(why.message(), "worker 'w17' (rank 17)")) << why.message();
    for (Future<void>& future : futures) EXPECT_FALSE(failureOf(future).ok());
    EXPECT_FALSE(failureOf(members.back().start(groups.back(), shapeOf(kFew))).ok()) << "it joins too late";
    // The others must hear from each other within the limit.
    return !contains(why.message(), "'w1'") ? ::testing::AssertionSuccess()
                                            : ::testing::AssertionFailure() << why.message();
  }));
}

// Its start has come, with its rows or before them, and then its process stands still.
TEST(SparseDeadline, SaysWhatHasNotCome) {
  for (const auto& [rows, missing] :
       {std::pair{kFew, "no sums have come from worker 'w1'"}, std::pair{kMany, "chunks have come from worker 'w1'"}})
    EXPECT_TRUE(withLongerLimits(seconds(2), [&](Duration limit) {
      auto members = membersOf(2, rows);
      GroupJob job(2);
      const std::vector<ProcessGroup> groups = job.makeAll({.timeout = limit});
      Future<void> begun = members[1].start(groups[1], shapeOf(rows));
      job.local().worker(1).executor->stop();
      const Status why = failureOf(members[0].start(groups[0], shapeOf(rows)));
      EXPECT_EQ(why.code(), Code::kDeadlineExceeded) << why.toString();
      return contains(why.message(), missing);
    }));
}

// The third has sent nothing yet, so that nobody can have all that it needs.
TEST(SparseCancel, ReachesEverybody) {
  for (uint64_t rows : {kFew, kMany}) {
    GroupJob job(3);
    const std::vector<ProcessGroup> groups = job.makeAll();
    auto members = membersOf(3, rows);
    Future<void> cancelled = members[0].start(groups[0], shapeOf(rows));
    Future<void> other = members[1].start(groups[1], shapeOf(rows));
    cancelled.cancel();
    const Status why = failureOf(other);
    EXPECT_EQ(why.code(), Code::kCancelled) << why.toString();
    EXPECT_TRUE(contains(why.message(), "worker 'w0' (rank 0) cancelled")) << why.message();
    EXPECT_THROW(cancelled.wait(), CancelledError);
    failureOf(members[2].start(groups[2], shapeOf(rows))).ignore();
    sumOfAll(groups, shapeOf(rows), members);
    expectSums(shapeOf(rows), members);
  }
}

TEST(SparseCancel, FreesTheSums) {
  GroupJob job(2);
  const std::vector<ProcessGroup> groups = job.makeAll();
  for (int round = 0; round < 10; ++round) {
    auto members = membersOf(2, kMany);
    auto mine = std::make_unique<SparseMember<float>>(std::move(members[0]));
    Future<void> here = mine->start(groups[0], shapeOf(kMany)), there = members[1].start(groups[1], shapeOf(kMany));
    here.cancel();
    mine.reset();  // the sanitizer would see a late write
    const Status why = failureOf(there);
    EXPECT_TRUE(why.ok() || why.code() == Code::kCancelled) << why.toString();
  }
}

// Rank 0 combines 504 of 1,000 rows, in runs of 31, and rank 1 the other 496; two floats each.
class StrangeSparse : public test::StrangeMember {
 protected:
  GroupOptions options() const override { return {.smallBytes = smallBytes_, .chunkBytes = 64}; }
  Future<void> begin() override {
    own_.add(7, shape_.width(), 1);
    return own_.start(group_, shape_);
  }

  Message start(uint64_t rows) const {
    Message message;
    message.description = first_.description;
    message.elements = rows;
    return message;
  }
  static Message result(uint64_t rows) {
    Message message;
    message.kind = MessageKind::kResult;
    message.elements = rows;
    return message;
  }
  void sendChunk(uint64_t position, Bytes data) {
    Message chunk;
    chunk.kind = MessageKind::kChunk;
    chunk.position = position;
    sendWith(std::move(chunk), data);
  }
  // Rows of ones, whose words are these.
  static std::vector<std::byte> rowsOf(const std::vector<uint64_t>& words, size_t rows) {
    const std::vector<float> values(2 * rows, 1);
    std::vector<std::byte> bytes(words.size() * 8 + values.size() * 4);
    std::memcpy(bytes.data(), words.data(), words.size() * 8);
    std::memcpy(bytes.data() + words.size() * 8, values.data(), values.size() * 4);
    return bytes;
  }

  SparseShape shape_{{1000, 2}, 1};
  size_t smallBytes_ = 1 << 16;
  SparseMember<float> own_;
};

TEST_F(StrangeSparse, PlaysAMember) {
  sendWith(start(2), rowsOf({7, 499}, 2));
  sendWith(result(1), rowsOf({0}, 1));
  EXPECT_TRUE(failureOf(future_).ok());
  EXPECT_EQ(own_.sumIndices(2), (std::vector<uint64_t>{7, 31, 995}));
  EXPECT_EQ(own_.sumValues(2), (std::vector<float>{2, 3, 1, 1, 1, 1}));
}

TEST_F(StrangeSparse, MoreRowsThanTheRange) {
  sendWith(start(505), rowsOf(std::vector<uint64_t>(8, UINT64_MAX), 505));
  expectCutOff("505 rows of a range of 504");
}

TEST_F(StrangeSparse, MoreRowsThanCanBeCounted) {
  sendWith(start(UINT64_MAX), {});
  expectCutOff("rows of a range of 504");
}

TEST_F(StrangeSparse, RowsOfAnotherSize) {
  sendWith(start(2), rowsOf({7, 499}, 3));
  expectCutOff("rows of another size than it said");
}

TEST_F(StrangeSparse, NoRowsWithTheStartWhereTheyAreSmall) {
  sendWith(start(2), {});
  expectCutOff("rows of another size than it said");
}

TEST_F(StrangeSparse, ARowBehindTheRange) {
  sendWith(start(2), rowsOf({7, 504}, 2));
  expectCutOff("rows outside of their range");
}

TEST_F(StrangeSparse, ARowTwice) {
  sendWith(start(2), rowsOf({7, 7}, 2));
  expectCutOff("out of order");
}

TEST_F(StrangeSparse, ABitBehindTheRange) {
  sendWith(start(8), rowsOf({7, 7, 1, 0, 0, 0, 0, uint64_t{1} << 56}, 8));
  expectCutOff("rows outside of their range");
}

TEST_F(StrangeSparse, AResultBeforeTheStart) {
  sendWith(result(1), rowsOf({0}, 1));
  expectCutOff("data of an operation that it had not begun");
}

TEST_F(StrangeSparse, AResultBehindItsRange) {
  sendWith(start(1), rowsOf({7}, 1));
  listener_.results_.waitFor(1);
  sendWith(result(1), rowsOf({496}, 1));
  expectCutOff("rows outside of their range");
}

TEST_F(StrangeSparse, AChunkAfterSmallRows) {
  sendWith(start(1), rowsOf({7}, 1));
  sendChunk(0, rowsOf({7}, 1));
  expectCutOff("a chunk where none was due");
}

// The 65th begins when the first is over.
TEST_F(StrangeSparse, AResultOfAnOperationThatHasNotBegunHere) {
  std::vector<SparseMember<float>> more(group::kAhead);
  std::vector<Future<void>> futures;
  for (auto& member : more) futures.push_back(member.start(group_, shape_));
  for (Message early : {start(0), result(0)}) {
    early.sequence = group::kAhead;
    sendWith(early, {});
  }
  expectCutOff("a result where none was due");
  for (Future<void>& future : futures) EXPECT_FALSE(failureOf(future).ok());
}

// Without its results; only the first two may send chunks.
TEST_F(StrangeSparse, GetsTheSumsOfAllSmallOperationsAtOnce) {
  constexpr size_t kMore = 9;
  std::vector<SparseMember<float>> more(kMore);
  std::vector<Future<void>> futures;
  for (auto& member : more) futures.push_back(member.start(group_, shape_));
  futures.push_back(future_);
  const auto sendToAll = [&](Message message, const std::vector<std::byte>& rows) {
    for (message.sequence = 0; message.sequence <= kMore; ++message.sequence) sendWith(message, rows);
  };
  sendToAll(start(1), rowsOf({7}, 1));
  listener_.results_.waitFor(kMore + 1);
  sendToAll(result(0), {});
  for (Future<void>& future : futures) EXPECT_TRUE(failureOf(future).ok());
}

// The sums of this member are out, and those of the other do not come.
class StrangeSparseWithoutSums : public StrangeSparse {
 protected:
  void SetUp() override {
    StrangeSparse::SetUp();
    sendWith(start(1), rowsOf({7}, 1));
    listener_.results_.waitFor(1);
  }
};

TEST_F(StrangeSparseWithoutSums, MayBeCancelled) {
  future_.cancel();
  EXPECT_THROW(future_.wait(), CancelledError);
  listener_.aborts_.waitFor(1);
}

TEST_F(StrangeSparseWithoutSums, MayBeLost) {
  job_->kill(1);
  const Status why = failureOf(future_);
  EXPECT_EQ(why.code(), Code::kPeerLost) << why.toString();
  EXPECT_EQ(why.worker(), "w1");
}

TEST_F(StrangeSparseWithoutSums, MayFailThere) {
  Message abort;
  abort.kind = MessageKind::kAbort;
  abort.status = invalidArgument("its sums are wrong");
  sendWith(abort, {});
  const Status why = failureOf(future_);
  EXPECT_EQ(why.code(), Code::kInvalidArgument) << why.toString();
  EXPECT_TRUE(contains(why.message(), "its sums are wrong")) << why.message();
}

// The third has not begun, so that the operation goes on.
class StrangeSparseOfThree : public StrangeSparse {
 protected:
  StrangeSparseOfThree() { size_ = 3; }
};

TEST_F(StrangeSparseOfThree, TwoResults) {
  sendWith(start(1), rowsOf({7}, 1));
  sendWith(result(1), rowsOf({0}, 1));
  sendWith(result(1), rowsOf({0}, 1));
  expectCutOff("a result where none was due");
}

// Rows come in chunks of 64 bytes.
class StrangeLargeSparse : public StrangeSparse {
 protected:
  StrangeLargeSparse() { smallBytes_ = 0; }
};

TEST_F(StrangeLargeSparse, PlaysAMember) {
  sendWith(start(5), {});
  const std::vector<std::byte> rows = rowsOf({7, 9, 11, 13, 499}, 5);
  sendChunk(0, Bytes(rows).first(64));
  sendChunk(1, Bytes(rows).subspan(64));
  sendWith(result(1), {});
  sendChunk(2, rowsOf({0}, 1));
  EXPECT_TRUE(failureOf(future_).ok());
  EXPECT_EQ(own_.sumIndices(2), (std::vector<uint64_t>{7, 9, 11, 13, 31, 995}));
}

TEST_F(StrangeLargeSparse, ARowBehindTheRange) {
  sendWith(start(1), {});
  sendChunk(0, rowsOf({504}, 1));
  expectCutOff("rows outside of their range");
}

TEST_F(StrangeLargeSparse, RowsWithTheStart) {
  sendWith(start(1), rowsOf({7}, 1));
  expectCutOff("more data than smallBytes");
}

TEST_F(StrangeLargeSparse, AChunkOfAResultThatIsNotAnnounced) {
  sendWith(start(1), {});
  sendChunk(0, rowsOf({7}, 1));
  sendChunk(1, rowsOf({0}, 1));
  expectCutOff("a chunk where none was due");
}

TEST_F(StrangeLargeSparse, AResultOfMoreRowsThanItsRange) {
  sendWith(start(0), {});
  sendWith(result(497), {});
  expectCutOff("497 rows of a range of 496");
}

// More rows than any memory has, in a shape that may have them.
class StrangeVastSparse : public StrangeLargeSparse {
 protected:
  StrangeVastSparse() { shape_ = {{uint64_t{1} << 50, 2}, 1}; }
};

// Half a window of chunks: then the worker acknowledges them.
TEST_F(StrangeVastSparse, RowsTakeMemoryAsTheyCome) {
  sendWith(start(uint64_t{1} << 48), {});
  for (uint64_t position = 0; position < 8; ++position) sendChunk(position, std::vector<std::byte>(64));
  listener_.acks_.waitFor(1);
  future_.cancel();
  EXPECT_THROW(future_.wait(), CancelledError);
}

// A result belongs to a sparse all-reduce.
class StrangeDense : public test::StrangeMember {
 protected:
  StrangeDense() { size_ = 3; }
  GroupOptions options() const override { return {}; }
  Future<void> begin() override { return allReduce(group_, std::span(data_)); }
  std::vector<float> data_ = std::vector<float>(8);
};

TEST_F(StrangeDense, AResult) {
  Message begun, result;
  begun.description = first_.description;
  begun.elements = data_.size();
  result.kind = MessageKind::kResult;
  sendWith(begun, std::as_bytes(std::span(data_)));
  sendWith(result, {});
  expectCutOff("a result where none was due");
}

}  // namespace
}  // namespace treadle::sparse_failure_test

// All-to-all with blocks of any sizes among more than 16 members, which agree along the tree.

#include <set>

#include "tests/core/group/strange_member.h"
#include "tests/core/group/tapped_job.h"

namespace treadle::all_to_all_v_test {
namespace {

using group::Message;
using group::MessageKind;
using test::contains;
using test::failureOf;
using test::TappedJob;

constexpr int kMembers = 21;  // 5 levels, and no power of two

// What a member sends and expects, by rank.
struct Sizes {
  std::vector<uint64_t> sent = std::vector<uint64_t>(kMembers), expected = sent;
};

// Many are 0.
std::vector<Sizes> equalOnBothSides() {
  std::vector<Sizes> sizes(kMembers);
  for (size_t from = 0; from < kMembers; ++from)
    for (size_t to = 0; to < kMembers; ++to)
      sizes[from].sent[to] = sizes[to].expected[from] = (from * 7 + to * 3) % 5 * (from + to);
  return sizes;
}

std::byte valueOf(size_t from, size_t to, size_t i) { return static_cast<std::byte>(from * 5 + to * 11 + i); }

class Member {
 public:
  Member(size_t rank, const Sizes& sizes) : sizes_(sizes) {
    for (size_t to = 0; to < kMembers; ++to)
      for (size_t i = 0; i < sizes.sent[to]; ++i) input_.push_back(valueOf(rank, to, i));
    for (size_t from = 0; from < kMembers; ++from)
      for (size_t i = 0; i < sizes.expected[from]; ++i) wanted_.push_back(valueOf(from, rank, i));
    output_.resize(wanted_.size());
  }

  Future<void> start(const ProcessGroup& group) {
    return allToAll(group, input_, output_, sizes_.sent, sizes_.expected);
  }
  bool hasAll() const { return output_ == wanted_; }

 private:
  const Sizes sizes_;
  std::vector<std::byte> input_, output_, wanted_;
};

class Members {
 public:
  explicit Members(const std::vector<Sizes>& sizes) {
    for (size_t rank = 0; rank < kMembers; ++rank) members_.emplace_back(rank, sizes[rank]);
  }

  std::vector<Future<void>> start(TappedJob& job, Duration timeout = test::kPatience) {
    std::vector<Future<void>> futures;
    for (int rank = 0; rank < kMembers; ++rank)
      futures.push_back(members_[static_cast<size_t>(rank)].start(job.group(rank).withTimeout(timeout)));
    return futures;
  }
  void expectAll() const {
    for (size_t rank = 0; rank < kMembers; ++rank) EXPECT_TRUE(members_[rank].hasAll()) << rank;
  }

 private:
  std::deque<Member> members_;
};

void expectToWork(TappedJob& job) {
  Members members(equalOnBothSides());
  std::vector<Future<void>> futures = members.start(job);
  test::waitAll(futures);
  members.expectAll();
}

TEST(AllToAllV, TakesAMessageUpAndOneDownBesideTheBlocks) {
  TappedJob job(kMembers);
  const int before = job.messages();
  expectToWork(job);
  int blocks = 0;
  for (int from = 0; const Sizes& sizes : equalOnBothSides()) {
    for (int to = 0; to < kMembers; ++to) blocks += to != from && sizes.sent[static_cast<size_t>(to)] > 0 ? 1 : 0;
    ++from;
  }
  EXPECT_EQ(job.messages() - before, 2 * (kMembers - 1) + blocks);
}

TEST(AllToAllV, MovesManyChunks) {
  TappedJob job(kMembers, {.chunkBytes = 64});
  for (int round = 0; round < 3; ++round) expectToWork(job);
}

// Rank `from` sends `sent` bytes to rank `to`, which expects others.
struct Difference {
  size_t from, to;
  uint64_t sent;
};

TEST(AllToAllV, OfSizesThatDifferFailsEverywhereAndNamesBoth) {
  TappedJob job(kMembers);
  for (const auto& [from, to, sent] : {Difference{0, 20, 3}, {20, 1, 0}, {8, 9, 1'000'000}, {3, 12, 1}, {16, 17, 2}}) {
    std::vector<Sizes> sizes = equalOnBothSides();
    ASSERT_NE(sizes[from].sent[to], sent);
    sizes[from].sent[to] = sent;
    const std::string wanted = TappedJob::nameOf(static_cast<int>(from)) + "' (rank " + std::to_string(from) +
                               ") sends " + std::to_string(sent) + " elements to worker '" +
                               TappedJob::nameOf(static_cast<int>(to)) + "'";
    Members members(sizes);
    for (const Future<void>& future : members.start(job)) {
      const Status why = failureOf(future);
      EXPECT_EQ(why.code(), Code::kInvalidArgument) << why.toString();
      EXPECT_TRUE(contains(why.message(), wanted)) << why.message();
      EXPECT_TRUE(contains(why.message(), "expects " + std::to_string(sizes[to].expected[from]))) << why.message();
    }
    expectToWork(job);
  }
}

// As many bytes as expected by each member and by all: sums of sizes would not show it.
TEST(AllToAllV, OfSizesThatChangePlacesFails) {
  TappedJob job(kMembers);
  std::vector<Sizes> sizes = equalOnBothSides();
  for (Sizes& one : sizes) one = {std::vector<uint64_t>(kMembers, 10), std::vector<uint64_t>(kMembers, 10)};
  for (size_t from : {size_t{4}, size_t{5}})
    for (size_t to : {size_t{11}, size_t{18}}) sizes[from].sent[to] = (from + to) % 2 == 0 ? 9 : 11;
  Members members(sizes);
  for (const Future<void>& future : members.start(job)) EXPECT_EQ(failureOf(future).code(), Code::kInvalidArgument);
  expectToWork(job);
}

TEST(AllToAllV, OfOneMemberThatLeavesOutTheSizesNamesIt) {
  TappedJob job(kMembers);
  const std::vector<uint64_t> ones(kMembers, 1);
  std::vector<std::byte> input(kMembers), output(kMembers);
  for (int strange : {0, 8, 20}) {
    std::vector<Future<void>> futures;
    for (int rank = 0; rank < kMembers; ++rank) {
      const std::vector<uint64_t> sizes = rank == strange ? std::vector<uint64_t>() : ones;
      futures.push_back(allToAll(job.group(rank), input, output, sizes, sizes));
    }
    for (const Future<void>& future : futures) {
      const Status why = failureOf(future);
      EXPECT_EQ(why.code(), Code::kInvalidArgument) << why.toString();
      EXPECT_TRUE(contains(why.message(), "'" + TappedJob::nameOf(strange) + "'")) << why.message();
    }
  }
  expectToWork(job);
}

std::vector<Sizes> differentFor(size_t from, size_t to) {
  std::vector<Sizes> sizes = equalOnBothSides();
  ++sizes[from].sent[to];
  return sizes;
}

TEST(AllToAllV, SizesMayComeBeforeTheStartOfTheParent) {
  TappedJob job(kMembers);
  Members members(differentFor(7, 3));
  const int before = job.seen(20);
  job.hold(20, [](int from, const Message&) { return from == 16; });
  // The member that would find the difference does not hear of it yet.
  job.hold(3, [](int, const Message& message) { return message.kind == MessageKind::kShare; });
  const std::vector<Future<void>> futures = members.start(job);
  job.waitUntilSeen(20, before + 1 + kMembers - 2);  // the start of 16, and the sizes of all but it
  EXPECT_FALSE(futures[20].ready());
  job.letGo();
  for (const Future<void>& future : futures) EXPECT_TRUE(contains(failureOf(future).message(), "'w7'"));
  expectToWork(job);
}

TEST(AllToAllV, OfSizesThatDifferEndsAtTheDeadlineWhereNobodyFindsTheDifference) {
  EXPECT_TRUE(test::withLongerLimits(std::chrono::milliseconds(300), [&](Duration limit) {
    TappedJob job(kMembers);
    Members members(differentFor(7, 3));
    job.hold(3, [](int from, const Message& message) { return from == 7 && message.kind == MessageKind::kShare; });
    auto isExplained = ::testing::AssertionFailure() << "nobody says that sizes differ";
    for (const Future<void>& future : members.start(job, limit)) {
      const Status why = failureOf(future);
      EXPECT_EQ(why.code(), Code::kDeadlineExceeded) << why.toString();
      // On a busy machine a limit may pass before all have begun.
      if (contains(why.message(), "some members expect other sizes than come to them"))
        isExplained = ::testing::AssertionSuccess();
    }
    job.letGo();
    expectToWork(job);
    return isExplained;
  }));
}

// It gets nothing of the operation, or no sizes when these are compared, and is lost then. It has sent no block by
// then, and none is due to some members, which may have all they need.
TEST(AllToAllV, OfALostMemberNamesIt) {
  for (const bool areCompared : {false, true})
    for (int victim : {0, 8, 20}) {
      TappedJob job(kMembers);
      const auto place = static_cast<size_t>(victim);
      const std::vector<Sizes> sizes = areCompared ? differentFor(7, place) : equalOnBothSides();
      Members members(sizes);
      job.hold(victim,
               [=](int, const Message& message) { return !areCompared || message.kind == MessageKind::kShare; });
      const std::vector<Future<void>> futures = members.start(job);
      job.waitUntilHeld(victim, 1);
      job.kill(victim);
      for (size_t rank = 0; rank < kMembers; ++rank) {
        const bool needsIt = areCompared || sizes[rank].expected[place] > 0;
        if (rank != place && (needsIt || !failureOf(futures[rank]).ok())) TappedJob::expectLoss(futures[rank], victim);
      }
    }
}

Message shareOf(uint64_t elements) {
  Message share;
  share.kind = MessageKind::kShare;
  share.elements = elements;
  return share;
}

// Rank 1 of the job sends what no member does; it is rank 0 of the group, and the other one its first child, a leaf.
class StrangeRootOfAllToAllV : public test::StrangeMember {
 protected:
  StrangeRootOfAllToAllV() { size_ = kMembers; }
  GroupOptions options() const override { return {}; }
  std::vector<std::string> members() const override { return strangerFirst(); }
  Future<void> begin() override {
    const std::vector<uint64_t> ones(kMembers, 1);
    return allToAll(group_, input_, output_, ones, ones);
  }
  Message startDown(uint64_t elements) const {
    Message start = first_;
    start.elements = elements;
    return start;
  }

  std::vector<std::byte> input_ = std::vector<std::byte>(kMembers), output_ = input_;
};

TEST_F(StrangeRootOfAllToAllV, AStartThatDoesNotSayWhetherSizesAgree) {
  sendWith(startDown(2), {});
  expectCutOff("a start that does not say whether the sizes agree");
}

TEST_F(StrangeRootOfAllToAllV, AStartWithData) {
  sendWith(startDown(0), std::vector<std::byte>(1));
  expectCutOff("data too early");
}

TEST_F(StrangeRootOfAllToAllV, ASizeTwice) {
  sendWith(shareOf(1), {});
  sendWith(shareOf(1), {});
  expectCutOff("a share where none was due");
}

TEST_F(StrangeRootOfAllToAllV, ASizeWithData) {
  sendWith(shareOf(1), std::vector<std::byte>(1));
  expectCutOff("a share where none was due");
}

TEST_F(StrangeRootOfAllToAllV, AnotherSizeFailsTheOperationAlone) {
  sendWith(startDown(1), {});
  sendWith(shareOf(2), {});
  const Status why = failureOf(future_);
  EXPECT_EQ(why.code(), Code::kInvalidArgument) << why.toString();
  EXPECT_TRUE(contains(why.message(), "worker 'w1' (rank 1) sends 2 elements")) << why.message();
  EXPECT_FALSE(listener_.lostFuture_.ready());
}

}  // namespace
}  // namespace treadle::all_to_all_v_test

// Runs the plans of all members of a ring on a table of numbers, chunks taken in a random order of members.

#include "treadle/core/group/ring_plan.h"

#include <deque>

#include "tests/core/group/group_job.h"

namespace treadle::group::ring_plan_test {
namespace {

struct Member {
  RingPlan plan;
  std::vector<int64_t> data;
  uint64_t sent = 0, received = 0;
  std::deque<std::vector<int64_t>> inbox;
};

class Ring {
 public:
  Ring(const Description& description, int size) : size_(size) {
    for (int rank = 0; rank < size; ++rank) {
      members_.push_back({RingPlan(description, size, rank), {}, 0, 0, {}});
      for (uint64_t i = 0; i < description.count; ++i) members_.back().data.push_back(valueOf(rank, i));
    }
  }

  static int64_t valueOf(int rank, uint64_t i) { return static_cast<int64_t>(i) * 10 + rank + 1; }

  // Until nothing can be sent or taken any more.
  void run(std::mt19937& random) {
    for (int idle = 0; idle < 100 * size_;) idle = step(random() % static_cast<uint32_t>(size_), random) ? 0 : idle + 1;
  }

  const Member& member(int rank) const { return members_[static_cast<size_t>(rank)]; }

 private:
  bool step(size_t rank, std::mt19937& random) {
    Member& member = members_[rank];
    if (random() % 2 == 0 && member.sent < member.plan.sendable(member.received)) {
      Range range = member.plan.sent(member.sent++);
      auto begin = member.data.begin();
      members_[(rank + 1) % members_.size()].inbox.emplace_back(begin + static_cast<ptrdiff_t>(range.begin),
                                                                begin + static_cast<ptrdiff_t>(range.end));
      return true;
    }
    if (member.inbox.empty()) return false;
    EXPECT_LT(member.received, member.plan.receives());
    take(member, member.inbox.front());
    member.inbox.pop_front();
    return true;
  }

  void take(Member& member, const std::vector<int64_t>& chunk) {
    Range range = member.plan.received(member.received);
    ASSERT_EQ(chunk.size(), range.count());
    RingPlan::Action action = member.plan.action(member.received++);
    for (uint64_t i = 0; i < chunk.size(); ++i) {
      int64_t& own = member.data[range.begin + i];
      own = chunk[i] + (action == RingPlan::Action::kReplace ? 0 : own);
      if (action == RingPlan::Action::kAddAndAverage) own /= size_;
    }
  }

  const int size_;
  std::vector<Member> members_;
};

class RingPlanTest : public ::testing::TestWithParam<std::tuple<int, uint64_t, uint64_t>> {
 protected:
  Description description(OperationKind operation) const {
    auto [size, count, chunkBytes] = GetParam();
    return {operation, DataType::kInt64, ReduceOp::kSum, 0, count, 0, chunkBytes};
  }
  int size() const { return std::get<0>(GetParam()); }
  std::mt19937 random_{test::newSeed()};
};

TEST_P(RingPlanTest, AllReduceAddsEverythingEverywhere) {
  for (ReduceOp op : {ReduceOp::kSum, ReduceOp::kAverage}) {
    Description what = description(OperationKind::kAllReduce);
    what.reduceOp = op;
    Ring ring(what, size());
    ring.run(random_);
    for (int rank = 0; rank < size(); ++rank) {
      ASSERT_EQ(ring.member(rank).sent, ring.member(rank).plan.sends());
      ASSERT_EQ(ring.member(rank).received, ring.member(rank).plan.receives());
      for (uint64_t i = 0; i < what.count; ++i) {
        int64_t sum = 0;
        for (int other = 0; other < size(); ++other) sum += Ring::valueOf(other, i);
        ASSERT_EQ(ring.member(rank).data[i], op == ReduceOp::kSum ? sum : sum / size()) << rank << " " << i;
      }
    }
  }
}

TEST_P(RingPlanTest, BroadcastBringsTheRootsEverywhere) {
  for (int root = 0; root < size(); ++root) {
    Description what = description(OperationKind::kBroadcast);
    what.root = static_cast<uint32_t>(root);
    Ring ring(what, size());
    ring.run(random_);
    for (int rank = 0; rank < size(); ++rank) {
      ASSERT_EQ(ring.member(rank).received, ring.member(rank).plan.receives());
      for (uint64_t i = 0; i < what.count; ++i) ASSERT_EQ(ring.member(rank).data[i], Ring::valueOf(root, i));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, RingPlanTest,
                         ::testing::Combine(::testing::Values(2, 3, 4, 5, 8),
                                            ::testing::Values<uint64_t>(0, 1, 2, 3, 7, 64, 1003),
                                            ::testing::Values<uint64_t>(8, 24, 64, 1 << 20)));

}  // namespace
}  // namespace treadle::group::ring_plan_test

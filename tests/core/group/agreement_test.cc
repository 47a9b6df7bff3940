// Members that execute agreements together, in random orders: nobody believes that all have begun before that is so,
// all learn it in the end, and nobody sends more than is promised.

#include "treadle/core/group/agreement.h"

#include <bit>
#include <deque>

#include "tests/core/group/group_job.h"
#include "treadle/core/group/binomial_tree.h"

namespace treadle::group::agreement_test {
namespace {

using Kind = Agreement::Kind;

constexpr int kSizes[] = {2, 3, 4, 5, 6, 7, 8, 9, 16, 17, 31, 64, 65, 100};

class AgreementTest : public ::testing::TestWithParam<Kind> {
 protected:
  struct Start {
    int from, to;
  };

  void make(int size) {
    members_.clear();
    for (int self = 0; self < size; ++self) members_.emplace_back(GetParam(), size, self);
    sent_.assign(members_.size(), 0);
  }

  // Those in `absent` never begin. Until nothing can happen any more.
  void run(const std::vector<int>& absent) {
    std::vector<Start> underWay;
    std::vector<int> toBegin;
    for (int self = 0; self < size(); ++self)
      if (std::find(absent.begin(), absent.end(), self) == absent.end()) toBegin.push_back(self);
    size_t begun = 0;
    while (!toBegin.empty() || !underWay.empty()) {
      const size_t which = random_() % (toBegin.size() + underWay.size());
      int self = 0;
      if (which < toBegin.size()) {
        self = toBegin[which];
        toBegin.erase(toBegin.begin() + static_cast<ptrdiff_t>(which));
        member(self).begin();
        ++begun;
      } else {
        const auto arriving = underWay.begin() + static_cast<ptrdiff_t>(which - toBegin.size());
        self = arriving->to;
        ASSERT_TRUE(member(self).hear(arriving->from)) << arriving->from << " to " << self;
        underWay.erase(arriving);
      }
      for (int to : member(self).due()) {
        underWay.push_back({self, to});
        ++sent_[static_cast<size_t>(self)];
      }
      ASSERT_TRUE(!member(self).agreed() || begun == members_.size()) << "member " << self << " agreed too early";
      expectRepliesAreTakenBy(self);
    }
  }

  // If a member may send data to a peer, it takes the peer's acknowledgements.
  void expectRepliesAreTakenBy(int self) {
    for (int peer = 0; peer < size(); ++peer) {
      if (peer == self || !member(self).sendsDataTo(peer)) continue;
      ASSERT_TRUE(member(self).takesDataFrom(peer)) << "member " << self << " from " << peer;
    }
  }

  int size() const { return static_cast<int>(members_.size()); }
  Agreement& member(int rank) { return members_[static_cast<size_t>(rank)]; }

  std::deque<Agreement> members_;
  std::vector<int> sent_;  // by rank
  std::mt19937 random_{test::seedOfRun()};
};

INSTANTIATE_TEST_SUITE_P(Kinds, AgreementTest, ::testing::Values(Kind::kAllToAll, Kind::kTree),
                         [](const auto& info) { return info.param == Kind::kTree ? "Tree" : "AllToAll"; });

TEST_P(AgreementTest, AllLearnThatAllHaveBegun) {
  for (int size : kSizes)
    for (int round = 0; round < 5; ++round) {
      SCOPED_TRACE(std::to_string(size) + " members");
      make(size);
      run({});
      for (Agreement& one : members_) EXPECT_TRUE(one.agreed());
      const int most = GetParam() == Kind::kAllToAll ? size - 1 : std::bit_width(static_cast<unsigned>(size - 1));
      for (int sent : sent_) EXPECT_LE(sent, most);
    }
}

TEST_P(AgreementTest, NobodyBelievesItOfWhoHasNot) {
  for (int size : kSizes)
    for (int round = 0; round < 5; ++round) {
      make(size);
      run({static_cast<int>(random_() % members_.size())});
      for (Agreement& one : members_) EXPECT_FALSE(one.agreed());
    }
}

TEST_P(AgreementTest, AwaitsStartsUntilAllHaveBegun) {
  make(17);
  run({5});
  for (int self : {0, 1, 4, 6, 16}) {
    std::vector<int> awaited = member(self).awaited();
    EXPECT_FALSE(awaited.empty()) << self;
    for (int peer : awaited) EXPECT_FALSE(member(self).heard(peer)) << self;
  }
  make(17);
  run({});
  for (Agreement& one : members_) EXPECT_TRUE(one.awaited().empty());
}

TEST_P(AgreementTest, AStartThatNoMemberSendsIsRefused) {
  make(17);
  EXPECT_TRUE(member(16).due().empty()) << "it has not begun";
  EXPECT_TRUE(member(0).hear(16));
  EXPECT_FALSE(member(0).hear(16)) << "twice";
  if (GetParam() == Kind::kAllToAll) return;
  EXPECT_FALSE(member(0).hear(3)) << "which is a child of rank 2";
  EXPECT_FALSE(member(16).hear(0)) << "from the parent, before this member's own";
}

TEST(BinomialTree, HasEachRankOnce) {
  for (int size : kSizes) {
    std::vector<int> seen(static_cast<size_t>(size));
    for (int rank = 0; rank < size; ++rank) {
      int end = rank + 1;
      for (int child : childrenOf(rank, size)) {
        EXPECT_EQ(parentOf(child), rank);
        EXPECT_EQ(child, end) << "the ranks below a child follow those below the one before";
        end = endOf(child, size);
        ++seen[static_cast<size_t>(child)];
      }
      EXPECT_EQ(end, endOf(rank, size));
    }
    EXPECT_EQ(std::count(seen.begin(), seen.end(), 1), size - 1);
    EXPECT_EQ(seen[0], 0);
  }
}

}  // namespace
}  // namespace treadle::group::agreement_test

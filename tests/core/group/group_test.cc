#include "treadle/core/group/group.h"

#include "tests/core/group/group_job.h"

namespace treadle::group_test {
namespace {

using test::GroupJob;

template <class E>
std::string messageOf(const std::function<void()>& action) {
  try {
    action();
  } catch (const E& error) {
    return error.what();
  }
  return "nothing was thrown";
}

TEST(GroupTest, RanksFollowTheList) {
  GroupJob job(3);
  ProcessGroup group = ProcessGroup::make(job.worker(1), {"w2", "w1"}, {.name = "pair"});
  EXPECT_EQ(group.rank(), 1);
  EXPECT_EQ(group.size(), 2);
  EXPECT_EQ(group.members(), (std::vector<std::string>{"w2", "w1"}));
  EXPECT_EQ(group.options().name, "pair");
  EXPECT_TRUE(group.valid());
}

TEST(GroupTest, WithoutANameIsCalledByFourMembersAtMost) {
  GroupJob job(6);
  EXPECT_EQ(job.make(0, {.name = "all"}).core().text(), "group 'all'");
  EXPECT_EQ(job.make(0).core().text(), "the group of w0, w1, w2, w3 and 2 more");
  EXPECT_EQ(ProcessGroup::make(job.worker(5), {"w4", "w5"}).core().text(), "the group of w4, w5");
}

TEST(GroupTest, BadListsAreRefusedByName) {
  GroupJob job(2);
  auto make = [&](std::vector<std::string> members) {
    return [&job, members] { ProcessGroup::make(job.worker(0), members); };
  };
  EXPECT_TRUE(test::contains(messageOf<ArgumentError>(make({"w0", "w1", "w0"})), "'w0' is named twice"));
  std::string unknown = messageOf<NotFoundError>(make({"w0", "nobody"}));
  EXPECT_TRUE(test::contains(unknown, "'nobody'") && test::contains(unknown, "w1")) << unknown;
  EXPECT_TRUE(test::contains(messageOf<ArgumentError>(make({"w1"})), "worker 'w0' (rank 0) is not a member"));
  EXPECT_TRUE(test::contains(messageOf<ArgumentError>(make({})), "at least one member"));
  EXPECT_TRUE(test::contains(messageOf<ArgumentError>(make({"w0", ""})), "empty name"));
}

TEST(GroupTest, BadOptionsAreRefused) {
  GroupJob job(1);
  EXPECT_THROW(job.make(0, {.name = std::string(128, 'x')}), ArgumentError);
  EXPECT_THROW(job.make(0, {.timeout = Duration::zero()}), ArgumentError);
  EXPECT_THROW(job.make(0, {.smallBytes = size_t{2} << 20}), ArgumentError);
  EXPECT_THROW(job.make(0, {.chunkBytes = 0}), ArgumentError);
  EXPECT_THROW(job.make(0, {.chunkBytes = size_t{1} << 30}), ArgumentError);
}

TEST(GroupTest, AHandleThatMeansNothingSaysSo) {
  ProcessGroup none;
  EXPECT_FALSE(none.valid());
  EXPECT_THROW(none.rank(), StateError);
  EXPECT_THROW(barrier(none), StateError);
}

// Groups of the same members are told apart by their names and by how often they were made.
TEST(GroupTest, SameMembersMayHaveSeveralGroups) {
  GroupJob job(2);
  std::vector<int32_t> values(8, 1);
  std::vector<Future<void>> futures;
  ProcessGroup a0 = job.make(0, {.name = "a"}), b0 = job.make(0, {.name = "b"}), first0 = job.make(0),
               second0 = job.make(0);
  ProcessGroup first1 = job.make(1), b1 = job.make(1, {.name = "b"}), second1 = job.make(1),
               a1 = job.make(1, {.name = "a"});
  // Each group's operation differs, so that a mix-up would be an error.
  const std::vector<std::pair<const ProcessGroup*, ReduceOp>> calls = {
      {&a0, ReduceOp::kSum},          {&b0, ReduceOp::kMax}, {&first0, ReduceOp::kMin}, {&second0, ReduceOp::kProduct},
      {&second1, ReduceOp::kProduct}, {&a1, ReduceOp::kSum}, {&b1, ReduceOp::kMax},     {&first1, ReduceOp::kMin}};
  for (size_t i = 0; i < calls.size(); ++i)
    futures.push_back(allReduce(*calls[i].first, std::span(&values[i], 1), calls[i].second));
  test::waitAll(futures);
  EXPECT_EQ(values, (std::vector<int32_t>{2, 1, 1, 1, 1, 2, 1, 1}));
}

TEST(GroupTest, AGroupOfOneNeedsNobody) {
  GroupJob job(2);
  ProcessGroup alone = ProcessGroup::make(job.worker(1), {"w1"});
  float value = 3;
  EXPECT_TRUE(barrier(alone).ready());
  EXPECT_TRUE(allReduce(alone, std::span(&value, 1), ReduceOp::kAverage).ready());
  EXPECT_EQ(value, 3);
}

TEST(GroupTest, AHandleMayOutliveItsJob) {
  ProcessGroup group;
  {
    GroupJob job(2);
    group = job.make(0);
  }
  EXPECT_EQ(test::failureOf(barrier(group)).code(), Code::kCancelled);
  EXPECT_EQ(group.size(), 2);
}

}  // namespace
}  // namespace treadle::group_test

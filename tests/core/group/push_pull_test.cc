// Tensors that members offer by name, in any order on each: sums, and what is refused.

#include <thread>

#include "tests/core/group/push_pull_tensors.h"
#include "tests/core/group/reductions.h"
#include "treadle/core/group/fusion_messages.h"

namespace treadle::push_pull_test {
namespace {

using std::chrono::milliseconds;
using test::contains;
using test::failureOf;
using test::GroupJob;
using test::nameOf;
using test::PushPullTest;
using test::sumOf;
using test::Tensors;
using test::valuesOf;

// Small ones, some that are cut, one without elements.
const std::vector<size_t> kCounts = {1, 0, 17, 100'003, 1'500'000, 3, 1'048'576, 1'048'577, 5000, 999};

TEST_F(PushPullTest, SumsWhatMembersOfferInAnyOrder) {
  for (int members : {2, 3, 5}) {
    GroupJob job(members);
    for (const GroupOptions& options : {GroupOptions{}, GroupOptions{.smallBytes = 0, .chunkBytes = 64 << 10}}) {
      std::vector<ProcessGroup> groups = job.makeAll(options);
      for (int step = 0; step < 2; ++step) sumAll(groups, kCounts);
    }
  }
}

TEST_F(PushPullTest, SumsOfManyMembersGoAlongTheirTree) {
  GroupJob job(21);
  std::vector<ProcessGroup> groups = job.makeAll();
  sumAll(groups, {1, 0, 100, 30'000, 1'100'000});
  sumAll(groups, {1, 0, 100, 30'000});
}

TEST_F(PushPullTest, ThousandsMayBeInFlight) {
  GroupJob job(3);
  std::vector<ProcessGroup> groups = job.makeAll();
  sumAll(groups, std::vector<size_t>(3000, 20));
}

// Another thread of each member offers other names at the same time.
TEST_F(PushPullTest, AnyThreadsMayOffer) {
  GroupJob job(3);
  std::vector<ProcessGroup> groups = job.makeAll();
  constexpr size_t kThreads = 3, kTensors = 100;
  std::vector<Tensors> data(3);
  for (size_t rank = 0; rank < 3; ++rank)
    for (size_t tensor = 0; tensor < kThreads * kTensors; ++tensor) data[rank].push_back(valuesOf(rank, tensor, 50));
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < 3; ++rank)
    for (size_t thread = 0; thread < kThreads; ++thread)
      threads.emplace_back([&, rank, thread] {
        std::vector<Future<void>> futures;
        for (size_t tensor = thread * kTensors; tensor < (thread + 1) * kTensors; ++tensor)
          futures.push_back(pushPull(groups[rank], nameOf(tensor), std::span(data[rank][tensor])));
        test::waitAll(futures);
      });
  for (std::thread& thread : threads) thread.join();
  for (size_t tensor = 0; tensor < kThreads * kTensors; ++tensor)
    for (size_t rank = 0; rank < 3; ++rank) ASSERT_EQ(data[rank][tensor], sumOf(3, tensor, 50));
}

TEST_F(PushPullTest, RoundsAlikeOnAllMembers) {
  GroupJob job(3);
  std::vector<ProcessGroup> groups = job.makeAll();
  std::vector<Tensors> data(3);
  std::vector<Future<void>> futures;
  for (size_t rank = 0; rank < 3; ++rank)
    for (size_t tensor = 0; tensor < kCounts.size(); ++tensor) {
      std::vector<float>& mine = data[rank].emplace_back(kCounts[tensor]);
      for (size_t i = 0; i < mine.size(); ++i) mine[i] = 1e8F / static_cast<float>(rank + i + 1) + 0.1F;
      futures.push_back(pushPull(groups[rank], nameOf(tensor), std::span(mine)));
    }
  test::waitAll(futures);
  for (size_t rank = 1; rank < 3; ++rank) ASSERT_EQ(data[rank], data[0]);
}

// Fused, cut or alone: the bits are those of a loop over the ranks.
TEST_F(PushPullTest, HasTheBitsOfALoopWithSumOrderByRank) {
  GroupJob job(3);
  std::vector<ProcessGroup> groups = job.makeAll({.sumOrder = SumOrder::kRank});
  std::vector<Tensors> data(3);
  std::vector<Future<void>> futures;
  Tensors sums;
  for (size_t tensor = 0; tensor < kCounts.size(); ++tensor) {
    std::vector<float>& sum = sums.emplace_back(kCounts[tensor]);
    for (size_t rank = 0; rank < 3; ++rank) {
      std::vector<float>& mine = data[rank].emplace_back(sum.size());
      for (size_t i = 0; i < mine.size(); ++i) {
        mine[i] = static_cast<float>(random_()) * 0.37F;
        sum[i] = rank == 0 ? mine[i] : sum[i] + mine[i];
      }
    }
  }
  for (size_t tensor = 0; tensor < kCounts.size(); ++tensor)
    for (size_t rank = 0; rank < 3; ++rank)
      futures.push_back(pushPull(groups[rank], nameOf(tensor), std::span(data[rank][tensor])));
  test::waitAll(futures);
  for (size_t rank = 0; rank < 3; ++rank) ASSERT_EQ(data[rank], sums);
}

// Several of each type and reduction, which are summed together, and those of 16 bits rounded once.
TEST_F(PushPullTest, ReducesEveryTypeByItsDefinition) {
  struct One {
    const test::Reduction& what;
    size_t count;
    std::vector<test::Memory> data;  // by rank
  };
  for (int members : {1, 2, 3, 5, 9}) {
    GroupJob job(members);
    const std::vector<test::Reduction> reductions = test::allReductions(members, 1009);
    for (const GroupOptions& options :
         {GroupOptions{}, GroupOptions{.smallBytes = 0, .chunkBytes = 512},
          GroupOptions{.smallBytes = 0, .chunkBytes = 512, .algorithm = Algorithm::kRing}}) {
      std::vector<ProcessGroup> groups = job.makeAll(options);
      std::vector<std::unique_ptr<One>> all;
      std::vector<Future<void>> futures;
      for (const test::Reduction& what : reductions)
        for (size_t count : {1, 100, 1009}) {
          One& one = *all.emplace_back(std::make_unique<One>(One{what, count, {}}));
          for (const test::Memory& input : what.inputs) {
            const Bytes first = what.first(input, count);
            one.data.emplace_back(first.begin(), first.end());
          }
          for (size_t rank = 0; rank < groups.size(); ++rank)
            futures.push_back(
                pushPull(groups[rank], nameOf(all.size()), one.data[rank].data(), count, what.type, {.op = what.op}));
        }
      test::waitAll(futures);
      for (const auto& one : all)
        for (const test::Memory& data : one->data)
          EXPECT_TRUE(std::ranges::equal(data, one->what.first(one->what.wanted, one->count)))
              << one->what.name() << " of " << one->count << " among " << members;
    }
  }
}

TEST_F(PushPullTest, WaitsForTheLastMember) {
  GroupJob job(3);
  std::vector<ProcessGroup> groups = job.makeAll();
  std::vector<std::vector<float>> data(3, std::vector<float>(10, 1));
  std::vector<Future<void>> futures = {pushPull(groups[2], "a", std::span(data[2])),
                                       pushPull(groups[0], "a", std::span(data[0]))};
  EXPECT_THROW(futures[0].wait(milliseconds(20)), TimeoutError);
  futures.push_back(pushPull(groups[1], "a", std::span(data[1])));
  test::waitAll(futures);
  EXPECT_EQ(data[1], std::vector<float>(10, 3));
}

// Offers reach rank 0 before it has made the group, and are kept for it.
TEST_F(PushPullTest, ReachesARankZeroThatMakesTheGroupLater) {
  GroupJob job(3);
  std::vector<ProcessGroup> groups(3);
  std::vector<Tensors> data(3);
  std::vector<Future<void>> futures;
  for (size_t rank : {2U, 1U, 0U}) {
    groups[rank] = job.make(static_cast<int>(rank));
    for (size_t tensor = 0; tensor < 500; ++tensor) {
      data[rank].push_back(valuesOf(rank, tensor, 10));
      futures.push_back(pushPull(groups[rank], nameOf(tensor), std::span(data[rank].back())));
    }
  }
  test::waitAll(futures);
  for (size_t tensor = 0; tensor < 500; ++tensor) ASSERT_EQ(data[0][tensor], sumOf(3, tensor, 10));
}

TEST_F(PushPullTest, KeepsNoOrderWithOtherOperations) {
  GroupJob job(2);
  std::vector<ProcessGroup> groups = job.makeAll();
  std::vector<float> a = {1}, b = {2};
  Future<void> first = pushPull(groups[0], "a", std::span(a)), early = barrier(groups[0]);
  Future<void> second = pushPull(groups[1], "a", std::span(b));
  first.wait(test::kPatience);
  second.wait(test::kPatience);
  Future<void> late = barrier(groups[1]);
  early.wait(test::kPatience);
  late.wait(test::kPatience);
  EXPECT_EQ(a, std::vector<float>{3});
}

TEST_F(PushPullTest, TakesAnyNamesOfUpTo255Bytes) {
  GroupJob job(2);
  std::vector<ProcessGroup> groups = job.makeAll();
  const std::vector<std::string> names = {"größe", "层.重み", "a b'c\"d", std::string(255, 'x'), "\xFF\xFE"};
  std::vector<std::vector<float>> data(2, std::vector<float>(names.size(), 1));
  std::vector<Future<void>> futures;
  for (size_t rank = 0; rank < 2; ++rank)
    for (size_t i = 0; i < names.size(); ++i) {
      const size_t at = rank == 0 ? i : names.size() - 1 - i;
      futures.push_back(pushPull(groups[rank], names[at], std::span(data[rank]).subspan(at, 1)));
    }
  test::waitAll(futures);
  EXPECT_EQ(data, std::vector(2, std::vector<float>(names.size(), 2)));
  for (const std::string& name : names) {
    const Future<void> one = pushPull(groups[0], name, std::span(data[0]));
    const Future<void> other = pushPull(groups[1], name, std::span(data[1]).first(1));
    for (const Status& why : test::failures({one, other})) {
      EXPECT_EQ(why.code(), Code::kInvalidArgument) << why.toString();
      EXPECT_TRUE(contains(why.message(), "pushPull of '" + name + "'"));
    }
  }
}

TEST_F(PushPullTest, OfAGroupOfOneIsDoneAtOnce) {
  GroupJob job(1);
  float value = 3;
  EXPECT_TRUE(pushPull(job.make(0), "a", std::span(&value, 1), {.op = ReduceOp::kAverage}).ready());
  EXPECT_EQ(value, 3);
}

class RefusedPushPullTest : public PushPullTest {
 protected:
  GroupJob job_{2};
  std::vector<ProcessGroup> groups_ = job_.makeAll({.name = "pair"});
  std::vector<float> a_ = std::vector<float>(6, 1), b_ = a_;
};

TEST_F(RefusedPushPullTest, ANameThatIsInFlight) {
  Future<void> first = pushPull(groups_[0], "a", std::span(a_));
  const std::string why = test::messageOf<StateError>([&] { pushPull(groups_[0], "a", std::span(b_)); });
  EXPECT_TRUE(contains(why, "pushPull of 'a' in group 'pair': a tensor of this name is in flight"));
  Future<void> other = pushPull(groups_[1], "a", std::span(b_));
  first.wait(test::kPatience);
  other.wait(test::kPatience);
  std::vector<Future<void>> again = {pushPull(groups_[0], "a", std::span(a_)),
                                     pushPull(groups_[1], "a", std::span(b_))};
  test::waitAll(again);
  EXPECT_EQ(a_, std::vector<float>(6, 4));
}

// What the thread does that completes the future comes first of all.
TEST_F(RefusedPushPullTest, ButNotInAContinuationOfTheLastOne) {
  std::vector<Future<void>> futures = {pushPull(groups_[0], "a", std::span(a_)),
                                       pushPull(groups_[1], "a", std::span(b_))};
  std::vector<Promise<void>> again(2);
  std::vector<Future<void>> ended = {again[0].future(), again[1].future()};
  for (size_t rank : {0U, 1U})
    sharedStateOf(futures[rank])->onReady([&, rank] {
      std::vector<float>& mine = rank == 0 ? a_ : b_;
      Future<void> next = pushPull(groups_[rank], "a", std::span(mine));
      sharedStateOf(next)->onReady([&again, rank, next] {
        const auto& result = sharedStateOf(next)->result();
        result.ok() ? again[rank].set() : again[rank].fail(result.status());
      });
    });
  test::waitAll(ended);
  EXPECT_EQ(a_, std::vector<float>(6, 4));
  EXPECT_EQ(b_, a_);
}

// And from step to step.
TEST_F(RefusedPushPullTest, ButNotANameWhoseFutureIsReady) {
  for (int step = 0; step < 200; ++step) {
    std::vector<Future<void>> futures = {pushPull(groups_[0], "a", std::span(a_)),
                                         pushPull(groups_[1], "a", std::span(b_))};
    futures[0].wait(test::kPatience);
    futures[0] = pushPull(groups_[0], "a", std::span(a_));
    futures[1].wait(test::kPatience);
    futures[1] = pushPull(groups_[1], "a", std::span(b_));
    test::waitAll(futures);
    std::fill(a_.begin(), a_.end(), 1.0F);
    std::fill(b_.begin(), b_.end(), 1.0F);
  }
}

TEST_F(RefusedPushPullTest, MoreThanMayBeInFlight) {
  std::vector<float> data(group::kMostOpenOffers + 1), others = data;
  std::vector<Future<void>> futures;
  for (size_t i = 0; i < group::kMostOpenOffers; ++i)
    futures.push_back(pushPull(groups_[1], nameOf(i), std::span(others).subspan(i, 1)));
  const std::string why =
      test::messageOf<ResourceError>([&] { pushPull(groups_[1], "one more", std::span(others).last(1)); });
  EXPECT_TRUE(contains(why, "16384 tensors are in flight"));
  EXPECT_TRUE(contains(why, "counts until worker 'w0' (rank 0), which matches the names, has answered"));
  for (size_t i = 0; i < group::kMostOpenOffers; ++i)
    futures.push_back(pushPull(groups_[0], nameOf(i), std::span(data).subspan(i, 1)));
  test::waitAll(futures);
}

TEST_F(RefusedPushPullTest, BadArguments) {
  const auto refused = [&](const std::string& name, group::DataType type, PushPullOptions options) {
    return test::messageOf<ArgumentError>(
        [&] { pushPull(groups_[0], name, a_.data(), a_.size(), type, std::move(options)); });
  };
  using group::DataType;
  EXPECT_TRUE(contains(refused("", DataType::kFloat32, {}), "needs a name"));
  EXPECT_TRUE(contains(refused(std::string(256, 'x'), DataType::kFloat32, {}), "at most 255 bytes"));
  EXPECT_TRUE(contains(refused("a\nb", DataType::kFloat32, {}), "control characters"));
  EXPECT_TRUE(contains(refused("a", DataType::kBool, {}), "bool"));
  EXPECT_TRUE(contains(refused("a", DataType::kFloat32, {.shape = {2, 2}}), "6 elements were given for"));
  EXPECT_TRUE(contains(refused("a", DataType::kFloat32, {.shape = std::vector<uint64_t>(65, 1)}), "64 dimensions"));
  EXPECT_THROW(pushPull(ProcessGroup(), "a", std::span(a_)), StateError);
  EXPECT_THROW(job_.make(0, {.stallReport = Duration::zero()}), ArgumentError);
  expectToGoOn(groups_);
}

// Batches have any size.
TEST_F(RefusedPushPullTest, AnAlgorithmThatCannotDoEverySize) {
  ProcessGroup exchange = job_.make(0, {.name = "exchange", .algorithm = Algorithm::kExchange});
  EXPECT_TRUE(contains(test::messageOf<ArgumentError>([&] { pushPull(exchange, "a", std::span(a_)); }),
                       "'exchange' cannot do allReduce"));
  std::vector<ProcessGroup> ring = job_.makeAll({.algorithm = Algorithm::kRing});
  sumAll(ring, {0, 10, 100'000, 2'000'000});
}

class DifferingPushPullTest : public PushPullTest {
 protected:
  // Rank 2 offers something else than the others.
  void expectDifference(const std::function<Future<void>(const ProcessGroup&, float* data, bool isOther)>& offer,
                        const std::string& one, const std::string& other) {
    std::vector<std::vector<float>> data(3, std::vector<float>(6)), fine(3, std::vector<float>(10, 1));
    std::vector<Future<void>> futures, others = offerOnAll(groups_, "fine", fine);
    for (size_t rank = 0; rank < 3; ++rank) futures.push_back(offer(groups_[rank], data[rank].data(), rank == 2));
    for (const Status& why : test::failures(futures)) {
      EXPECT_EQ(why.code(), Code::kInvalidArgument) << why.toString();
      for (const std::string& part :
           {std::string("pushPull of 'a' in group 'trio' differs"), one, other, std::string("worker 'w2' (rank 2)")})
        EXPECT_TRUE(contains(why.message(), part));
    }
    test::waitAll(others);
    EXPECT_EQ(fine[0], std::vector<float>(10, 3));
  }

  GroupJob job_{3};
  std::vector<ProcessGroup> groups_ = job_.makeAll({.name = "trio"});
};

TEST_F(DifferingPushPullTest, ShapesFailThatNameOnAll) {
  using group::DataType;
  expectDifference(
      [](const ProcessGroup& group, float* data, bool isOther) {
        const std::vector<uint64_t> shape = isOther ? std::vector<uint64_t>{3, 2} : std::vector<uint64_t>{2, 3};
        return pushPull(group, "a", data, 6, DataType::kFloat32, {.shape = shape});
      },
      "float32 [2, 3] (sum)", "float32 [3, 2] (sum)");
  expectDifference([](const ProcessGroup& group, float* data,
                      bool isOther) { return pushPull(group, "a", data, isOther ? 5 : 6, DataType::kFloat32); },
                   "float32 [6]", "float32 [5]");
}

TEST_F(DifferingPushPullTest, TypesAndReductionsFailThatNameOnAll) {
  using group::DataType;
  expectDifference(
      [](const ProcessGroup& group, float* data, bool isOther) {
        return pushPull(group, "a", data, 6, isOther ? DataType::kInt32 : DataType::kFloat32);
      },
      "float32 [6] (sum)", "int32 [6] (sum)");
  expectDifference(
      [](const ProcessGroup& group, float* data, bool isOther) {
        return pushPull(group, "a", data, 6, DataType::kFloat32, {.op = isOther ? ReduceOp::kMax : ReduceOp::kSum});
      },
      "(sum)", "(max)");
}

}  // namespace
}  // namespace treadle::push_pull_test

// Groups of so many members that they do not all send to each other: what a small group promises holds for them too.

#include <numeric>

#include "tests/core/group/group_job.h"
#include "tests/core/group/tap.h"
#include "treadle/core/group/cost.h"
#include "treadle/core/group/half.h"

namespace treadle::many_members_test {
namespace {

using std::chrono::seconds;
using test::contains;
using test::failureOf;
using test::GroupJob;
using test::onAll;
using test::startOnAll;

constexpr int kMembers = 21;  // 5 levels, and no power of two

class ManyMembers : public ::testing::Test {
 protected:
  void expectToGoOn() {
    onAll(groups_, [](const ProcessGroup& group, size_t) { return barrier(group); });
  }

  // The member's data of `count` elements.
  template <class T>
  static std::vector<T> valuesOf(size_t rank, size_t count) {
    std::vector<T> values;
    for (size_t i = 0; i < count; ++i) values.push_back(static_cast<T>(i % 50 + 3 * rank + 1));
    return values;
  }
  template <class T>
  static std::vector<std::vector<T>> valuesOfAll(size_t count) {
    std::vector<std::vector<T>> all;
    for (size_t rank = 0; rank < kMembers; ++rank) all.push_back(valuesOf<T>(rank, count));
    return all;
  }
  template <class T>
  static std::vector<T> sums(size_t count) {
    std::vector<T> sums(count);
    for (size_t rank = 0; rank < kMembers; ++rank) {
      const std::vector<T> values = valuesOf<T>(rank, count);
      for (size_t i = 0; i < count; ++i) sums[i] += values[i];
    }
    return sums;
  }

  GroupJob job_{kMembers};
  std::vector<ProcessGroup> groups_ = job_.makeAll({.name = "many"});
  std::mt19937 random_{test::seedOfRun()};
};

TEST_F(ManyMembers, AllReduceGivesTheSameBitsToAll) {
  for (size_t count : {size_t{0}, size_t{1}, size_t{100}, size_t{100'003}}) {
    auto data = valuesOfAll<float>(count);
    onAll(groups_, [&](const ProcessGroup& group, size_t rank) { return allReduce(group, std::span(data[rank])); });
    for (const auto& mine : data) ASSERT_EQ(mine, sums<float>(count));
    auto integers = valuesOfAll<int64_t>(count);
    onAll(groups_, [&](const ProcessGroup& group, size_t rank) {
      return allReduce(group, std::span(integers[rank]), ReduceOp::kAverage);
    });
    std::vector<int64_t> average = sums<int64_t>(count);
    for (int64_t& value : average) value /= kMembers;
    for (const auto& mine : integers) ASSERT_EQ(mine, average);
  }
}

// In any other order these have other sums.
TEST_F(ManyMembers, AllReduceRoundsAlikeOnAll) {
  for (size_t count : {size_t{100}, size_t{100'003}}) {
    std::vector<std::vector<float>> data(kMembers, std::vector<float>(count));
    for (size_t rank = 0; rank < kMembers; ++rank)
      for (size_t i = 0; i < count; ++i)
        data[rank][i] = 1e8F / static_cast<float>(rank + 1) + static_cast<float>(i) * 0.1F;
    onAll(groups_, [&](const ProcessGroup& group, size_t rank) {
      return allReduce(group, std::span(data[rank]), ReduceOp::kAverage);
    });
    for (const auto& mine : data) ASSERT_EQ(mine, data[0]);
  }
}

// In many chunks, which rank 0 and the root combine while they send.
TEST_F(ManyMembers, SmallDataMayComeInManyChunks) {
  constexpr size_t kCount = 1000, kRoot = 13;
  std::vector<ProcessGroup> groups = job_.makeAll({.chunkBytes = 64, .algorithm = Algorithm::kRoot});
  std::vector<std::vector<group::Float16>> halves;
  for (size_t rank = 0; rank < kMembers; ++rank)
    halves.emplace_back(kCount, group::toFloat16(static_cast<float>(rank)));
  const auto inputs = valuesOfAll<int64_t>(kCount);
  std::vector<int64_t> reduced(kCount);
  std::vector<Future<void>> futures;
  for (size_t rank = 0; rank < kMembers; ++rank) {
    futures.push_back(allReduce(groups[rank], std::span(halves[rank])));
    const std::span<int64_t> output = rank == kRoot ? std::span(reduced) : std::span<int64_t>();
    futures.push_back(reduce(groups[rank], std::span(inputs[rank]), output, kRoot));
  }
  test::waitAll(futures);
  for (const auto& mine : halves)
    for (group::Float16 value : mine) ASSERT_EQ(group::toFloat(value), 210);
  EXPECT_EQ(reduced, sums<int64_t>(kCount));
}

// Added one after the other in float16, the small ones would vanish.
TEST_F(ManyMembers, SmallHalvesAreRoundedOnce) {
  const auto large = group::toFloat16(2048), small = group::toFloat16(0.5F);
  std::vector<std::vector<group::Float16>> data(kMembers, std::vector<group::Float16>(10, small));
  data[0].assign(10, large);
  onAll(groups_, [&](const ProcessGroup& group, size_t rank) { return allReduce(group, std::span(data[rank])); });
  for (const auto& mine : data)
    for (group::Float16 value : mine) ASSERT_EQ(group::toFloat(value), 2048 + 20 * 0.5F);
}

TEST_F(ManyMembers, BroadcastComesFromEachRoot) {
  for (int root = 0; root < kMembers; ++root)
    for (size_t count : {size_t{0}, size_t{100}, size_t{30'000}}) {
      auto data = valuesOfAll<int32_t>(count);
      onAll(groups_,
            [&](const ProcessGroup& group, size_t rank) { return broadcast(group, std::span(data[rank]), root); });
      for (const auto& mine : data) ASSERT_EQ(mine, valuesOf<int32_t>(static_cast<size_t>(root), count));
    }
}

TEST_F(ManyMembers, OtherOperationsDoTheirWork) {
  constexpr size_t kEach = 5, kAll = kEach * kMembers, kRoot = 13;
  const auto inputs = valuesOfAll<float>(kAll);
  const auto each = valuesOfAll<float>(kEach);
  std::vector<std::vector<float>> reduced(kMembers, std::vector<float>(kAll)), scattered(kMembers),
      gathered(kMembers, std::vector<float>(kAll));
  for (auto& mine : scattered) mine.resize(kEach);
  std::vector<float> joined;
  for (const auto& mine : each) joined.insert(joined.end(), mine.begin(), mine.end());
  const auto partOf = [](const std::vector<float>& all, size_t rank) {
    return std::vector<float>(all.begin() + static_cast<ptrdiff_t>(kEach * rank),
                              all.begin() + static_cast<ptrdiff_t>(kEach * (rank + 1)));
  };

  onAll(groups_, [&](const ProcessGroup& group, size_t rank) {
    return reduce(group, std::span(inputs[rank]), std::span(reduced[rank]), kRoot);
  });
  EXPECT_EQ(reduced[kRoot], sums<float>(kAll));
  onAll(groups_, [&](const ProcessGroup& group, size_t rank) {
    return reduceScatter(group, std::span(inputs[rank]), std::span(scattered[rank]));
  });
  for (size_t rank = 0; rank < kMembers; ++rank) EXPECT_EQ(scattered[rank], partOf(sums<float>(kAll), rank));
  onAll(groups_, [&](const ProcessGroup& group, size_t rank) {
    return allGather(group, std::as_bytes(std::span(each[rank])), std::as_writable_bytes(std::span(gathered[rank])));
  });
  for (const auto& mine : gathered) EXPECT_EQ(mine, joined);
  onAll(groups_, [&](const ProcessGroup& group, size_t rank) {
    return gather(group, std::as_bytes(std::span(each[rank])),
                  rank == kRoot ? std::as_writable_bytes(std::span(gathered[rank])) : MutableBytes(), kRoot);
  });
  EXPECT_EQ(gathered[kRoot], joined);
  onAll(groups_, [&](const ProcessGroup& group, size_t rank) {
    return scatter(group, rank == kRoot ? std::as_bytes(std::span(inputs[rank])) : Bytes(),
                   std::as_writable_bytes(std::span(scattered[rank])), kRoot);
  });
  for (size_t rank = 0; rank < kMembers; ++rank) EXPECT_EQ(scattered[rank], partOf(inputs[kRoot], rank));
  onAll(groups_, [&](const ProcessGroup& group, size_t rank) {
    return allToAll(group, std::as_bytes(std::span(inputs[rank])), std::as_writable_bytes(std::span(gathered[rank])));
  });
  for (size_t rank = 0; rank < kMembers; ++rank)
    for (size_t from = 0; from < kMembers; ++from) EXPECT_EQ(partOf(gathered[rank], from), partOf(inputs[from], rank));
}

// With sizes that differ. A barrier ends when all of its messages have come, and so do these.
TEST(ManyMembersSend, SmallBlocksInRounds) {
  constexpr auto kAll = static_cast<size_t>(kMembers);
  std::vector<test::Tap> taps(kAll);
  GroupJob job(kMembers, {}, [&](int rank, group::GroupService& service) -> cluster::MessageHandler& {
    test::Tap& tap = taps[static_cast<size_t>(rank)];
    tap.connect(service);
    return tap;
  });
  const std::vector<ProcessGroup> groups = job.makeAll();
  std::vector<Future<void>> futures;
  for (const ProcessGroup& group : groups) futures.push_back(barrier(group));
  test::waitAll(futures);
  const auto seen = [&] {
    int messages = 0;
    for (test::Tap& tap : taps) messages += tap.seenOf(tap.groupAt(0)).count();
    return messages;
  };
  const int before = seen();
  EXPECT_EQ(before, 2 * (kMembers - 1));

  std::vector<uint64_t> sizes(kAll);
  for (size_t rank = 0; rank < kAll; ++rank) sizes[rank] = 100 + rank;
  const uint64_t count = std::accumulate(sizes.begin(), sizes.end(), uint64_t{0});
  std::vector<std::vector<std::byte>> inputs, outputs(kAll, std::vector<std::byte>(count));
  std::vector<std::byte> want;
  futures.clear();
  for (size_t rank = 0; rank < kAll; ++rank) {
    inputs.emplace_back(sizes[rank], static_cast<std::byte>(rank));
    want.insert(want.end(), inputs.back().begin(), inputs.back().end());
  }
  for (size_t rank = 0; rank < kAll; ++rank)
    futures.push_back(allGather(groups[rank], inputs[rank], outputs[rank], sizes));
  test::waitAll(futures);
  for (const auto& output : outputs) ASSERT_EQ(output, want);
  group::Description what{.operation = group::OperationKind::kAllGather, .count = count};
  what.smallBytes = GroupOptions{}.smallBytes;
  what.chunkBytes = GroupOptions{}.chunkBytes;
  what.algorithm = group::Algorithm::kCirculant;
  const int sent = seen() - before;
  EXPECT_EQ(sent, static_cast<int>(group::costOf(what, group::Placement::onOneHost(kMembers)).allMessages));
  EXPECT_LE(sent, 2 * (kMembers - 1) + kMembers * 6) << "5 rounds, of which one at most is in two pieces";
}

TEST_F(ManyMembers, ABarrierWaitsForEach) {
  for (size_t last = 0; last < kMembers; last += 5) {
    std::vector<Future<void>> futures;
    for (size_t rank = 0; rank < kMembers; ++rank)
      if (rank != last) futures.push_back(barrier(groups_[rank]));
    EXPECT_THROW(futures.front().wait(std::chrono::milliseconds(10)), TimeoutError);
    for (Future<void>& future : futures) EXPECT_FALSE(future.ready());
    futures.push_back(barrier(groups_[last]));
    test::waitAll(futures);
  }
}

TEST_F(ManyMembers, AHundredOperationsAreInFlight) {
  constexpr size_t kOperations = 100;
  std::vector<std::vector<int32_t>> data(kMembers * kOperations);
  std::vector<Future<void>> futures;
  for (size_t rank = 0; rank < kMembers; ++rank)
    for (size_t i = 0; i < kOperations; ++i) {
      auto& mine = data[rank * kOperations + i];
      mine.assign(i % 9 == 0 ? 20'000 : 10, static_cast<int32_t>(i));
      futures.push_back(i % 4 == 3 ? barrier(groups_[rank]) : allReduce(groups_[rank], std::span(mine)));
    }
  test::waitAll(futures);
  for (size_t rank = 0; rank < kMembers; ++rank)
    for (size_t i = 0; i < kOperations; ++i)
      ASSERT_EQ(data[rank * kOperations + i].back(), static_cast<int32_t>(i % 4 == 3 ? i : i * kMembers));
}

TEST_F(ManyMembers, EachSendsToFewOthers) {
  const auto receiversOf = [&](int rank) {
    int receivers = 0;
    for (int peer = 0; peer < kMembers; ++peer)
      receivers += valueOrThrow(job_.local().worker(rank).membership->channels(peer)).unixSockets.sentBytes > 0 ? 1 : 0;
    return receivers;
  };
  auto data = valuesOfAll<float>(100);
  onAll(groups_, [&](const ProcessGroup& group, size_t rank) { return allReduce(group, std::span(data[rank])); });
  for (int rank = 0; rank < kMembers; ++rank) EXPECT_LE(receiversOf(rank), 5);
}

// One member calls something else.
TEST_F(ManyMembers, ThatDifferAreNamed) {
  std::vector<std::byte> bytes(kMembers), other(kMembers);
  const std::vector<uint64_t> ones(kMembers, 1);
  const std::vector<std::pair<const char*, std::function<Future<void>(const ProcessGroup&)>>> others = {
      {"11 uint8", [&](const ProcessGroup& group) { return broadcast(group, std::span(bytes).first(11), 0); }},
      {"rank 1", [&](const ProcessGroup& group) { return broadcast(group, std::span(bytes).first(10), 1); }},
      {"allToAll of 21 uint8", [&](const ProcessGroup& group) { return allToAll(group, bytes, other); }},
      {"allToAll of blocks of any sizes",
       [&](const ProcessGroup& group) { return allToAll(group, bytes, other, ones, ones); }}};
  for (size_t strange : {size_t{0}, size_t{1}, size_t{12}, size_t{20}})
    for (const auto& [what, call] : others) {
      std::vector<std::vector<std::byte>> data(kMembers, std::vector<std::byte>(10));
      std::vector<Future<void>> futures = startOnAll(groups_, [&](const ProcessGroup& group, size_t rank) {
        return rank == strange ? call(group) : broadcast(group, MutableBytes(data[rank]), 0);
      });
      for (const Future<void>& future : futures) {
        const Status why = failureOf(future);
        EXPECT_EQ(why.code(), Code::kInvalidArgument) << why.toString();
        EXPECT_TRUE(contains(why.message(), "worker 'w" + std::to_string(strange) + "'")) << why.message();
        EXPECT_TRUE(contains(why.message(), what) && contains(why.message(), "10 uint8")) << why.message();
      }
      expectToGoOn();
    }
}

// The parent of a late member may send to its other children, and has their acknowledgements before the late one
// begins.
TEST_F(ManyMembers, DataMayMoveBeforeAllHaveBegun) {
  std::vector<ProcessGroup> groups = job_.makeAll({.smallBytes = 0, .chunkBytes = 1000});
  std::vector<std::vector<int32_t>> data = valuesOfAll<int32_t>(100'000);
  std::vector<Future<void>> futures;
  const auto start = [&](size_t rank) { futures.push_back(broadcast(groups[rank], std::span(data[rank]), 0)); };
  for (size_t rank = 0; rank < kMembers; ++rank)
    if (rank != 2) start(rank);
  EXPECT_THROW(futures.back().wait(std::chrono::milliseconds(50)), TimeoutError);
  start(2);
  test::waitAll(futures);
  for (const auto& mine : data) ASSERT_EQ(mine, valuesOf<int32_t>(0, 100'000));
}

// More operations than may be under way at a time. A member that has not failed has ended well, and the others hear
// that: also when they fail while it handles the last chunk, which takes long if it is large.
class CancellingMembers : public ManyMembers, public ::testing::WithParamInterface<size_t> {};

TEST_P(CancellingMembers, LeaveAGroupThatGoesOn) {
  std::vector<std::vector<std::byte>> data(kMembers, std::vector<std::byte>(GetParam()));
  std::vector<ProcessGroup> groups = job_.makeAll({.chunkBytes = 4 << 20});
  for (int round = 0; round < 100; ++round) {
    const size_t victim = random_() % kMembers, other = random_() % kMembers;
    std::vector<Future<void>> futures;
    for (size_t rank = 0; rank < kMembers; ++rank)
      futures.push_back(broadcast(groups[rank], MutableBytes(data[rank]), 0));
    if (round % 4 > 0) failureOf(futures[other]).ignore();
    try {
      futures[victim].wait(std::chrono::microseconds(random_() % 1500));
    } catch (const TimeoutError&) {}
    futures[victim].cancel();
    for (const Future<void>& future : futures) {
      const Status why = failureOf(future);
      ASSERT_TRUE(why.ok() || why.code() == Code::kCancelled) << why.toString();
    }
  }
  std::vector<Future<void>> futures;
  for (ProcessGroup& group : groups) futures.push_back(barrier(group));
  test::waitAll(futures);
}

INSTANTIATE_TEST_SUITE_P(Bytes, CancellingMembers, ::testing::Values(100, 4 << 20));

// The others report exactly those that have not begun: also one that has not made the group.
TEST_F(ManyMembers, ThatAreMissingAreNamed) {
  for (const std::vector<int>& missing : std::vector<std::vector<int>>{{0}, {20}, {3, 16}, {0, 1}, {8, 9, 10}})
    EXPECT_TRUE(test::withLongerLimits(seconds(1), [&](Duration limit) {
      const auto isMissing = [&](int rank) { return std::find(missing.begin(), missing.end(), rank) != missing.end(); };
      std::vector<Future<void>> futures;
      std::vector<ProcessGroup> groups;
      for (int rank = 0; rank < kMembers; ++rank) {
        if (isMissing(rank) && rank % 2 == 0) continue;  // without the group
        groups.push_back(job_.make(rank, {.timeout = limit}));
        if (!isMissing(rank)) futures.push_back(barrier(groups.back()));
      }
      std::string names;
      for (int rank : missing)
        names += (names.empty() ? "" : ", ") + ("worker 'w" + std::to_string(rank)) + "' (rank " +
                 std::to_string(rank) + ")";
      auto outcome = ::testing::AssertionSuccess();
      for (const Future<void>& future : futures) {
        const Status why = failureOf(future);
        EXPECT_EQ(why.code(), Code::kDeadlineExceeded) << why.toString();
        // A busy machine may be too slow for the others to begin within the limit.
        const size_t named = why.message().find("it has not been started by " + names);
        const bool onlyThese = named != std::string::npos && !contains(why.message().substr(named), names + ",");
        if (!onlyThese) outcome = ::testing::AssertionFailure() << why.message();
      }
      for (int rank : missing)
        if (rank % 2 == 0) groups.push_back(job_.make(rank, {.timeout = limit}));  // the next round is another group
      return outcome;
    }));
}

// The process of one member stands still. On a busy machine others may not answer within a second either.
TEST(ManyMembersFail, AndWhoDoesNotAnswerIsNamed) {
  EXPECT_TRUE(test::withLongerLimits(seconds(1), [](Duration limit) {
    GroupJob job(kMembers);
    std::vector<ProcessGroup> groups = job.makeAll({.timeout = limit});
    job.local().worker(6).executor->stop();
    std::vector<Future<void>> futures;
    for (size_t rank = 0; rank < groups.size(); ++rank)
      if (rank != 6) futures.push_back(barrier(groups[rank]));
    auto outcome = ::testing::AssertionSuccess();
    for (const Future<void>& future : futures) {
      const Status why = failureOf(future);
      EXPECT_EQ(why.code(), Code::kDeadlineExceeded) << why.toString();
      const size_t answers = why.message().find("no answer has come from");
      if (answers == std::string::npos || !contains(why.message().substr(answers), "worker 'w6' (rank 6)"))
        outcome = ::testing::AssertionFailure() << why.message();
    }
    return outcome;
  }));
}

}  // namespace
}  // namespace treadle::many_members_test

// Sends and receives between two members: contents, order, independence of the group's other operations, failures.

#include <numeric>

#include "tests/core/group/group_job.h"

namespace treadle::send_test {
namespace {

using test::contains;
using test::failureOf;
using test::GroupJob;

std::vector<int32_t> numbers(size_t count, int32_t first) {
  std::vector<int32_t> all(count);
  std::iota(all.begin(), all.end(), first);
  return all;
}

constexpr size_t kCounts[] = {0, 1, 999, 100'003, 1'000'003};

TEST(SendTest, BringsTheBytesOfEachMemberToEachOther) {
  GroupJob job(3);
  // Large ones in many chunks, small ones with the start.
  for (const GroupOptions& options : {GroupOptions{.smallBytes = 0, .chunkBytes = 4096}, GroupOptions{}}) {
    std::vector<ProcessGroup> groups = job.makeAll(options);
    for (size_t count : kCounts) {
      std::vector<std::vector<int32_t>> sent, got;
      std::vector<Future<void>> futures;
      for (int from = 0; from < 3; ++from)
        for (int to = 0; to < 3; ++to)
          if (from != to) sent.push_back(numbers(count, 10 * from + to)), got.emplace_back(count);
      size_t next = 0;
      for (int from = 0; from < 3; ++from)
        for (int to = 0; to < 3; ++to) {
          if (from == to) continue;
          futures.push_back(recv(groups[static_cast<size_t>(to)], std::span(got[next]), from));
          futures.push_back(send(groups[static_cast<size_t>(from)], std::span(sent[next]), to));
          ++next;
        }
      test::waitAll(futures);
      EXPECT_EQ(got, sent) << count;
    }
  }
}

TEST(SendTest, KeepsTheOrderOfAThousandInFlight) {
  constexpr int32_t kMessages = 1000;
  GroupJob job(2);
  std::vector<ProcessGroup> groups = job.makeAll();
  for (size_t large : {size_t{1}, size_t{20'000}}) {
    std::vector<std::vector<int32_t>> sent, got;
    std::vector<Future<void>> futures;
    for (int32_t i = 0; i < kMessages; ++i) {
      const size_t count = i % 10 == 0 ? large : 3;
      sent.push_back(numbers(count, i));
      got.emplace_back(count);
    }
    for (auto& one : sent) futures.push_back(send(groups[0], std::span(one), 1));
    for (auto& one : got) futures.push_back(recv(groups[1], std::span(one), 0));
    test::waitAll(futures);
    EXPECT_EQ(got, sent);
  }
}

// Members may call their sends, receives and collective operations in different orders.
TEST(SendTest, KeepsNoOrderWithOtherOperations) {
  GroupJob job(3);
  std::vector<ProcessGroup> groups = job.makeAll();
  std::vector<int32_t> sent = {7}, got = {0};
  std::vector<Future<void>> first = {send(groups[0], std::span(sent), 2), recv(groups[2], std::span(got), 0)};
  Future<void> early = barrier(groups[2]);
  test::waitAll(first);
  EXPECT_EQ(got, sent);
  std::vector<Future<void>> all = {early, barrier(groups[0]), barrier(groups[1])};
  test::waitAll(all);
}

TEST(SendTest, EndsWhenTheReceiverHasCalledRecv) {
  GroupJob job(2);
  std::vector<ProcessGroup> groups = job.makeAll();
  std::vector<int32_t> sent = {7}, got = {0};
  Future<void> sending = send(groups[0], std::span(sent), 1);
  EXPECT_THROW(sending.wait(std::chrono::milliseconds(20)), TimeoutError);
  recv(groups[1], std::span(got), 0).wait(test::kPatience);
  sending.wait(test::kPatience);
  EXPECT_EQ(got, sent);
}

TEST(SendTest, ReachesAMemberThatMakesTheGroupLater) {
  GroupJob job(2);
  std::vector<int32_t> sent = {7}, got = {0};
  Future<void> sending = send(job.make(0), std::span(sent), 1);
  recv(job.make(1), std::span(got), 0).wait(test::kPatience);
  sending.wait(test::kPatience);
  EXPECT_EQ(got, sent);
}

TEST(SendTest, OtherSizesFailOnBothAndNameThem) {
  GroupJob job(2);
  std::vector<ProcessGroup> groups = job.makeAll({.name = "pair"});
  std::vector<int32_t> sent(3), got(4);
  std::vector<Future<void>> futures = {send(groups[0], std::span(sent), 1), recv(groups[1], std::span(got), 0)};
  for (Future<void>& future : futures) {
    const Status why = failureOf(future);
    EXPECT_EQ(why.code(), Code::kInvalidArgument) << why.toString();
    for (const char* part : {"(rank 0) calls send of 12 bytes", "(rank 1) calls recv of 16 bytes",
                             "operation 0 of the sends from w0 to w1 in group 'pair'"})
      EXPECT_TRUE(contains(why.message(), part)) << why.message();
  }
  got.resize(3);
  std::vector<Future<void>> next = {send(groups[0], std::span(sent), 1), recv(groups[1], std::span(got), 0)};
  test::waitAll(next);
}

TEST(SendTest, NamesTheMemberThatHasNotCalledIt) {
  GroupJob job(2);
  std::vector<ProcessGroup> groups = job.makeAll({.name = "pair"});
  std::vector<int32_t> data(3);
  const auto late = [&](Future<void> future, const std::string& what, const std::string& missing) {
    const Status why = failureOf(std::move(future));
    EXPECT_EQ(why.code(), Code::kDeadlineExceeded) << why.toString();
    EXPECT_TRUE(contains(why.message(), what + " of 12 bytes")) << why.message();
    EXPECT_TRUE(contains(why.message(), "it has not been started by worker '" + missing + "'")) << why.message();
  };
  const auto hurried = [&](size_t rank) { return groups[rank].withTimeout(std::chrono::milliseconds(50)); };
  late(send(hurried(0), std::span(data), 1), "send", "w1");
  late(recv(hurried(0), std::span(data), 1), "recv", "w1");
  // The group and its later sends go on.
  EXPECT_EQ(failureOf(recv(groups[1], std::span(data), 0)).code(), Code::kDeadlineExceeded);
  std::vector<Future<void>> next = {send(groups[0], std::span(data), 1), recv(groups[1], std::span(data), 0),
                                    barrier(groups[0]), barrier(groups[1])};
  test::waitAll(next);
}

// Also of a member that is not part of it: its peer may wait for that one.
TEST(SendTest, FailsWithTheNameOfAnyLostMember) {
  for (int lost : {1, 2}) {
    GroupJob job(3);
    std::vector<ProcessGroup> groups = job.makeAll();
    std::vector<int32_t> sent(3), got(3);
    std::vector<Future<void>> futures = {send(groups[0], std::span(sent), 1), recv(groups[0], std::span(got), 1)};
    job.local().kill(lost);
    futures.push_back(futures[0].then([] {}));
    for (Future<void>& future : futures) EXPECT_EQ(failureOf(future).worker(), "w" + std::to_string(lost));
    EXPECT_EQ(failureOf(send(groups[0], std::span(sent), 2)).worker(), "w" + std::to_string(lost)) << "a new stream";
    const Status later = failureOf(send(groups[0], std::span(sent), 1));
    EXPECT_EQ(later.code(), Code::kPeerLost);
    EXPECT_EQ(later.worker(), "w" + std::to_string(lost));
    EXPECT_EQ(failureOf(barrier(groups[0])).worker(), "w" + std::to_string(lost));
  }
}

TEST(SendTest, EndsWithItsWorker) {
  auto job = std::make_unique<GroupJob>(2);
  ProcessGroup group = job->make(0);
  std::vector<int32_t> data(1'000'000);
  Future<void> sending = send(group, std::span(data), 1), receiving = recv(group, std::span(data), 1);
  job.reset();
  EXPECT_FALSE(failureOf(sending).ok());
  EXPECT_FALSE(failureOf(receiving).ok());
  EXPECT_FALSE(failureOf(send(group, std::span(data), 1)).ok());
}

TEST(SendTest, CancelGivesTheMemoryBackAndNotifiesTheOther) {
  GroupJob job(2);
  // More than a window of chunks: the send cannot end without the receiver.
  std::vector<ProcessGroup> groups = job.makeAll({.smallBytes = 0, .chunkBytes = 64});
  std::vector<int32_t> sent(10'000), got(10'000);
  Future<void> receiving = recv(groups[1], std::span(got), 0);
  receiving.cancel();
  EXPECT_EQ(failureOf(receiving).code(), Code::kCancelled);
  const Status why = failureOf(send(groups[0], std::span(sent), 1));
  EXPECT_EQ(why.code(), Code::kCancelled) << why.toString();
  EXPECT_TRUE(contains(why.message(), "worker 'w1'")) << why.message();
  std::vector<Future<void>> next = {send(groups[0], std::span(sent), 1), recv(groups[1], std::span(got), 0)};
  test::waitAll(next);
}

// The receiver's memory is free when `cancel` returns, wherever the data is.
TEST(SendTest, MayBeCancelledWhileDataFlows) {
  GroupJob job(2);
  std::vector<ProcessGroup> groups = job.makeAll({.smallBytes = 0, .chunkBytes = 1024});
  const std::vector<int32_t> sent(50'000, 1);
  for (int round = 0; round < 100; ++round) {
    auto got = std::make_unique<std::vector<int32_t>>(sent.size());
    Future<void> receiving = recv(groups[1], std::span(*got), 0), sending = send(groups[0], std::span(sent), 1);
    try {
      receiving.wait(std::chrono::microseconds(round * 10));
    } catch (const TimeoutError&) {}
    receiving.cancel();
    got.reset();
    const Status why = failureOf(sending);
    EXPECT_TRUE(why.ok() || why.code() == Code::kCancelled) << why.toString();
  }
  std::vector<int32_t> last(sent.size());
  std::vector<Future<void>> next = {send(groups[0], std::span(sent), 1), recv(groups[1], std::span(last), 0)};
  test::waitAll(next);
  EXPECT_EQ(last, sent);
}

TEST(SendTest, WorksInALargeGroup) {
  GroupJob job(17);
  std::vector<ProcessGroup> groups = job.makeAll();
  std::vector<int32_t> sent = numbers(100'000, 5), got(sent.size());
  std::vector<Future<void>> futures = {send(groups[16], std::span(sent), 3), recv(groups[3], std::span(got), 16)};
  test::waitAll(futures);
  EXPECT_EQ(got, sent);
}

TEST(SendTest, AMemberThatIsNoneIsRefusedAtOnce) {
  GroupJob job(2);
  std::vector<ProcessGroup> groups = job.makeAll({.name = "pair"});
  std::vector<int32_t> data(1);
  for (int rank : {-1, 0, 2}) {
    EXPECT_THROW(send(groups[0], std::span(data), rank), ArgumentError);
    EXPECT_THROW(recv(groups[0], std::span(data), rank), ArgumentError);
  }
  try {
    send(groups[0], std::span(data), 0);
  } catch (const ArgumentError& error) {
    EXPECT_TRUE(contains(error.what(), "rank 0 of group 'pair' is this member")) << error.what();
  }
  EXPECT_THROW(send(ProcessGroup(), std::span(data), 1), StateError);
}

// Many members at once, both directions, random sizes and orders of calls: closed form by content.
TEST(SendTest, RandomTrafficArrivesWhole) {
  constexpr int kSize = 4, kMessages = 60;
  for (uint32_t seed : {1U, 2U, 3U}) {
    std::mt19937 random(seed);
    GroupJob job(kSize);
    std::vector<ProcessGroup> groups = job.makeAll({.smallBytes = 256, .chunkBytes = 1024});
    struct Transfer {
      int from, to;
      std::vector<int32_t> sent, got;
    };
    std::vector<Transfer> all;
    for (int i = 0; i < kMessages; ++i) {
      const int from = static_cast<int>(random() % kSize),
                to = (from + 1 + static_cast<int>(random() % (kSize - 1))) % kSize;
      const size_t count = random() % 3 == 0 ? random() % 100'000 : random() % 64;
      all.push_back({from, to, numbers(count, i), std::vector<int32_t>(count)});
    }
    // Each stream keeps its order, and streams mix at will: sends first or receives first, member by member.
    std::vector<std::pair<int, bool>> turns;
    for (int member = 0; member < kSize; ++member) turns.insert(turns.end(), {{member, true}, {member, false}});
    std::shuffle(turns.begin(), turns.end(), random);
    std::vector<Future<void>> futures;
    for (auto [member, sends] : turns)
      for (Transfer& one : all) {
        ProcessGroup& group = groups[static_cast<size_t>(member)];
        if (sends && one.from == member) futures.push_back(send(group, std::span(one.sent), one.to));
        if (!sends && one.to == member) futures.push_back(recv(group, std::span(one.got), one.from));
      }
    test::waitAll(futures);
    for (const Transfer& one : all) ASSERT_EQ(one.got, one.sent) << seed;
  }
}

}  // namespace
}  // namespace treadle::send_test

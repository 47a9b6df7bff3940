// Large operations of more urgency go before those that were called earlier, on all members, and nothing waits for
// ever.

#include <array>
#include <thread>

#include "tests/core/group/tapped_job.h"
#include "tests/support/seeds.h"
#include "treadle/core/group/group_core.h"

namespace treadle::urgency_test {
namespace {

using group::Message;
using group::MessageKind;
using test::TappedJob;

// Everything is large, and goes in small chunks.
const GroupOptions kLarge = {.smallBytes = 0, .chunkBytes = 64};
constexpr size_t kCount = 1000;

// All-reduces and all-gathers of one group, in turn, as all members call them: the how-manieth has values of its own.
class Calls {
 public:
  explicit Calls(std::vector<ProcessGroup>& groups) : groups_(groups), calls_(groups.size()) {}

  void call(int rank, uint32_t urgency = 0) {
    std::deque<Call>& own = calls_[static_cast<size_t>(rank)];
    const size_t index = own.size();
    Call& call = own.emplace_back();
    for (size_t i = 0; i < kCount; ++i) call.data.push_back(valueOf(index, i, rank));
    const ProcessGroup group = groups_[static_cast<size_t>(rank)].withUrgency(urgency);
    if (isSum(index)) {
      call.future = allReduce(group, std::span(call.data));
    } else {
      call.gathered.resize(kCount * groups_.size());
      call.future =
          allGather(group, std::as_bytes(std::span(call.data)), std::as_writable_bytes(std::span(call.gathered)));
    }
  }
  void callOnAll(uint32_t urgency = 0) {
    for (int rank = 0; rank < size(); ++rank) call(rank, urgency);
  }
  void expectResult(size_t index) {
    for (std::deque<Call>& own : calls_) {
      ASSERT_TRUE(test::failureOf(own[index].future).ok());
      for (size_t i = 0; i < kCount; ++i) {
        if (isSum(index)) {
          ASSERT_EQ(own[index].data[i], sumOf(index, i));
        } else {
          for (int rank = 0; rank < size(); ++rank)
            ASSERT_EQ(own[index].gathered[static_cast<size_t>(rank) * kCount + i], valueOf(index, i, rank));
        }
      }
    }
  }
  void expectResults(size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) expectResult(i);
  }
  bool isReady(int rank, size_t index) const { return calls_[static_cast<size_t>(rank)][index].future.ready(); }

 private:
  struct Call {
    std::vector<int32_t> data, gathered;
    Future<void> future;
  };
  static bool isSum(size_t index) { return index % 2 == 0; }
  static int32_t valueOf(size_t index, size_t i, int rank) {
    return static_cast<int32_t>(100'000 * index + 20 * i) + rank;
  }
  int32_t sumOf(size_t index, size_t i) const { return size() * valueOf(index, i, 0) + size() * (size() - 1) / 2; }
  int size() const { return static_cast<int>(groups_.size()); }

  std::vector<ProcessGroup>& groups_;
  std::vector<std::deque<Call>> calls_;  // by rank
};

// The member gets no chunks of the first operations after the barrier, which is operation 0.
void holdChunks(TappedJob& job, int rank, size_t operations) {
  job.hold(rank, [operations](int, const Message& message) {
    return message.kind == MessageKind::kChunk && message.sequence <= operations;
  });
}

// From all to all, and along a tree.
class Urgency : public ::testing::TestWithParam<int> {
 protected:
  void callOnAll(size_t operations) {
    for (size_t i = 0; i < operations; ++i) calls_.callOnAll();
  }
  // They move, and the last member gets no chunks of them.
  void callAndHold(size_t operations) {
    holdChunks(job_, last_, operations);
    callOnAll(operations);
    job_.waitUntilHeld(last_, 1);
  }

  const int last_ = GetParam() - 1;
  TappedJob job_{GetParam(), kLarge};
  Calls calls_{job_.groups()};
};
INSTANTIATE_TEST_SUITE_P(Members, Urgency, ::testing::Values(2, 3, 17));

TEST_P(Urgency, GoesBeforeOperationsThatMoveAlready) {
  constexpr size_t kEarlier = 5;
  callAndHold(kEarlier);
  calls_.callOnAll(/*urgency=*/1);
  calls_.expectResult(kEarlier);
  calls_.callOnAll(/*urgency=*/2);
  calls_.expectResult(kEarlier + 1);
  // Others may have a gathering: they need only what the last member has sent before it stopped.
  for (size_t i = 0; i < kEarlier; ++i) EXPECT_FALSE(calls_.isReady(last_, i)) << i;
  job_.letGo();
  calls_.expectResults(0, kEarlier);
}

// As many as move at a time. The last member calls them only when it has the results of those before them.
TEST_P(Urgency, StopsNothingBeforeAllMembersHaveBegunIt) {
  constexpr size_t kEarlier = 5, kAll = kEarlier + group::kMoving;
  callOnAll(kEarlier);
  for (size_t i = kEarlier; i < kAll; ++i)
    for (int rank = 0; rank < last_; ++rank) calls_.call(rank, /*urgency=*/1);
  calls_.expectResults(0, kEarlier);
  for (size_t i = kEarlier; i < kAll; ++i) calls_.call(last_, /*urgency=*/1);
  calls_.expectResults(kEarlier, kAll);
}

TEST_P(Urgency, LetsOthersGoOnWhenItFails) {
  constexpr size_t kEarlier = 4;
  callAndHold(kEarlier);
  std::vector<std::vector<int32_t>> data(job_.groups().size(), std::vector<int32_t>(kCount));
  for (size_t i = 0; i < group::kMoving; ++i) {
    std::vector<Future<void>> urgent = test::startOnAll(job_.groups(), [&](const ProcessGroup& group, size_t rank) {
      return allReduce(group.withUrgency(1), std::span(data[rank]));
    });
    urgent.front().cancel();
    for (const Future<void>& future : urgent) test::failureOf(future).ignore();  // it may end well elsewhere
  }
  job_.letGo();
  calls_.expectResults(0, kEarlier);
}

// Each member calls them at its own pace. By circulant, sums have memory of their own, and gathers copy before they
// send.
class UrgencyOfAny : public ::testing::TestWithParam<group::Algorithm> {};
INSTANTIATE_TEST_SUITE_P(Algorithms, UrgencyOfAny,
                         ::testing::Values(group::Algorithm::kAutomatic, group::Algorithm::kCirculant,
                                           group::Algorithm::kDirect));

void callInAnyOrder(int size, const GroupOptions& options, test::Random& draw) {
  TappedJob job(size, options);
  Calls calls(job.groups());
  std::vector<uint32_t> urgencies;
  for (int i = 0; i < 20; ++i) urgencies.push_back(static_cast<uint32_t>(test::pick(draw, 5)));
  std::vector<std::thread> members;
  for (int rank = 0; rank < size; ++rank)
    members.emplace_back([&, rank] {
      for (const uint32_t urgency : urgencies) calls.call(rank, urgency);
    });
  for (std::thread& member : members) member.join();
  calls.expectResults(0, urgencies.size());
}

TEST_P(UrgencyOfAny, GivesAllResults) {
  GroupOptions options = kLarge;
  options.algorithm = GetParam();
  test::forSeeds(
      8, [&](test::Random& draw) { callInAnyOrder(std::array{2, 3, 4, 5}[test::pick(draw, 4)], options, draw); });
  test::forSeeds(1, [&](test::Random& draw) { callInAnyOrder(17, options, draw); });
}

// Streams of two and sums by name have an order of their own.
TEST(Urgencies, DoNotCountForSendsAndSumsByName) {
  TappedJob job(2, kLarge);
  std::vector<int32_t> sent(kCount, 7), received(kCount), sums(kCount, 1), others(kCount, 2);
  std::vector<Future<void>> futures = {
      send(job.group(0).withUrgency(1), std::as_bytes(std::span(sent)), 1),
      recv(job.group(1).withUrgency(2), std::as_writable_bytes(std::span(received)), 0),
      pushPull(job.group(0).withUrgency(3), "a", std::span(sums)), pushPull(job.group(1), "a", std::span(others))};
  test::waitAll(futures);
  EXPECT_EQ(received, sent);
  EXPECT_EQ(sums, std::vector<int32_t>(kCount, 3));
}

TEST_P(Urgency, ThatDiffersFailsOnAllMembers) {
  std::vector<int32_t> data(job_.groups().size());
  const std::vector<Future<void>> futures =
      test::startOnAll(job_.groups(), [&](const ProcessGroup& group, size_t rank) {
        return allReduce(group.withUrgency(rank == 1 ? 4 : 3), std::span(&data[rank], 1));
      });
  for (const Future<void>& future : futures) {
    const Status why = test::failureOf(future);
    EXPECT_EQ(why.code(), Code::kInvalidArgument) << why.toString();
    EXPECT_TRUE(test::contains(why.message(), "urgency 3") && test::contains(why.message(), "urgency 4"))
        << why.message();
  }
}

}  // namespace
}  // namespace treadle::urgency_test

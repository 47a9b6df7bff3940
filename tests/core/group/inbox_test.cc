#include "treadle/core/group/inbox.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace treadle::group::inbox_test {
namespace {

std::vector<int> drained(Inbox<int>& inbox, bool inTask, Turn& last) {
  std::vector<int> events;
  while (std::optional<int> event = inbox.next(inTask, last)) events.push_back(*event);
  return events;
}

TEST(InboxTest, WhoPushesIntoAnIdleOneHasTheTurn) {
  Inbox<int> inbox;
  Turn turn;
  EXPECT_EQ(inbox.push(1, false), Turn::kRun);
  EXPECT_EQ(inbox.push(2, false), Turn::kNone);
  EXPECT_EQ(inbox.push(3, true), Turn::kNone);
  EXPECT_EQ(drained(inbox, false, turn), (std::vector{1, 2}));
  EXPECT_EQ(turn, Turn::kPost);
  ASSERT_TRUE(inbox.takePosted());
  EXPECT_FALSE(inbox.takePosted());
  EXPECT_EQ(drained(inbox, true, turn), (std::vector{3}));
  EXPECT_EQ(turn, Turn::kNone);
  EXPECT_FALSE(inbox.takePosted());
}

TEST(InboxTest, TheFirstGoesFirstAndDoesNotWaitForATask) {
  Inbox<int> inbox;
  Turn turn;
  EXPECT_EQ(inbox.push(1, true), Turn::kPost);
  EXPECT_EQ(inbox.pushFirst(2), Turn::kRun);
  EXPECT_FALSE(inbox.takePosted());
  EXPECT_EQ(inbox.pushFirst(3), Turn::kNone);
  EXPECT_EQ(drained(inbox, false, turn), (std::vector{3, 2}));
  EXPECT_EQ(turn, Turn::kPost);
  EXPECT_TRUE(inbox.takePosted());
}

TEST(InboxTest, EventsOfManyThreadsAreHandledOneAtATime) {
  constexpr int kThreads = 4, kEach = 20'000;
  Inbox<int> inbox;
  std::vector<int> handled(kThreads, 0);  // unguarded on purpose: the turn guards it
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread)
    threads.emplace_back([&, thread] {
      for (int i = 0; i < kEach; ++i) {
        Turn turn = i % 7 == 0 ? inbox.pushFirst(thread) : inbox.push(thread, i % 3 == 0);
        while (turn != Turn::kNone) {
          if (turn == Turn::kPost && !inbox.takePosted()) break;
          while (std::optional<int> event = inbox.next(true, turn)) ++handled[static_cast<size_t>(*event)];
        }
      }
    });
  for (std::thread& thread : threads) thread.join();
  inbox.waitForTurnToEnd();
  for (int count : handled) EXPECT_EQ(count, kEach);
}

}  // namespace
}  // namespace treadle::group::inbox_test

#include "treadle/core/cluster/names.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace treadle::cluster::names_test {
namespace {

bool any(int) { return true; }

TEST(Names, findsEachRankByItsName) {
  Names names;
  for (int rank = 0; rank < 5000; ++rank) names.add("w" + std::to_string(rank), rank);
  for (int rank = 0; rank < 5000; ++rank) EXPECT_EQ(rank, names.find("w" + std::to_string(rank), any));
  EXPECT_EQ(std::nullopt, names.find("w5000", any));
  EXPECT_EQ(std::nullopt, names.find("", any));
}

TEST(Names, findsTheHighestRankThatIsWantedWhateverTheOrderOfAdding) {
  Names names;
  for (int rank : {3, 9, 1, 7}) names.add("w", rank);
  EXPECT_EQ(9, names.find("w", any));
  EXPECT_EQ(7, names.find("w", [](int rank) { return rank < 9; }));
  EXPECT_EQ(std::nullopt, names.find("w", [](int rank) { return rank > 9; }));
}

TEST(Names, areFoundWhileOthersAreAdded) {
  Names names;
  constexpr int kThreads = 4, kNames = 1000;
  names.add("first", 0);
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread)
    threads.emplace_back([&names, thread] {
      for (int i = 0; i < kNames; ++i) {
        const int rank = 1 + i * kThreads + thread;
        names.add("w" + std::to_string(rank), rank);
        EXPECT_EQ(rank, names.find("w" + std::to_string(rank), any));
        EXPECT_EQ(0, names.find("first", any));
      }
    });
  for (std::thread& thread : threads) thread.join();
  for (int rank = 1; rank <= kThreads * kNames; ++rank) EXPECT_EQ(rank, names.find("w" + std::to_string(rank), any));
}

}  // namespace
}  // namespace treadle::cluster::names_test

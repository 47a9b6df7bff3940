#include "treadle/core/io/thread_cache.h"

#include <atomic>
#include <set>
#include <thread>

#include "tests/support/gate.h"

namespace treadle::io::thread_cache_test {
namespace {

void run(ThreadCache& cache, UniqueFunction<void()> task) { ASSERT_TRUE(cache.run(task)); }

TEST(ThreadCache, givesEachTaskAThreadForItself) {
  constexpr int kTasks = 20;
  test::Counter begun;
  test::Gate end;
  ThreadCache cache;  // goes first: it waits for tasks that use the others
  for (int i = 0; i < kTasks; ++i)
    run(cache, [&] {
      begun.add();
      end.wait();
    });
  begun.waitFor(kTasks);
  end.open();
}

TEST(ThreadCache, keepsAThreadForTheNextTask) {
  std::set<std::thread::id> ids;
  ThreadCache cache(std::chrono::hours(1));
  for (int i = 0; i < 20; ++i) {
    test::Gate done;
    run(cache, [&] {
      ids.insert(std::this_thread::get_id());
      done.open();
    });
    done.wait();
    // The thread may still be on its way back: then there is another one, but never one for each task.
  }
  EXPECT_LT(ids.size(), 20U);
}

TEST(ThreadCache, refusesATaskWhenAllThreadsOfItsLimitAreBusy) {
  test::Gate begun, end, ran;
  ThreadCache cache(std::chrono::hours(1), 1);
  run(cache, [&] {
    begun.open();
    end.wait();
  });
  begun.wait();
  UniqueFunction<void()> next = [&] { ran.open(); };
  EXPECT_FALSE(cache.run(next));
  ASSERT_TRUE(next) << "it was not taken";
  end.open();
  EXPECT_TRUE(test::eventually([&] { return cache.run(next); }));
  ran.wait();
}

TEST(ThreadCache, waitsForItsTasksWhenItGoes) {
  std::atomic<int> ended = 0;
  {
    ThreadCache cache(std::chrono::milliseconds(1));
    for (int round = 0; round < 50; ++round)
      for (int i = 0; i < 4; ++i) run(cache, [&] { ++ended; });
  }
  EXPECT_EQ(200, ended);
}

}  // namespace
}  // namespace treadle::io::thread_cache_test

#include "treadle/core/io/executor.h"

#include <sys/resource.h>

#include <atomic>
#include <filesystem>
#include <iterator>

#include "tests/core/io/pool.h"
#include "tests/support/gate.h"
#include "treadle/core/io/serving.h"

namespace treadle::io::executor_test {
namespace {

using namespace std::chrono_literals;
using test::Counter;
using test::Gate;
using test::Pool;

TEST(Executor, runsWhatIsPostedFromAnyThread) {
  Counter ran;
  Pool pool;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      for (int i = 0; i < 100; ++i) pool.executor->post([&] { pool.executor->post([&] { ran.add(); }); });
    });
  pool.reactor->at(Clock::now(), [&] { pool.executor->post([&] { ran.add(); }); });
  for (std::thread& thread : threads) thread.join();
  ran.waitFor(401);
}

TEST(Executor, makesNoMoreThreadsForABurstThanMayRun) {
  auto threads = [] {
    auto all = std::filesystem::directory_iterator("/proc/self/task");
    return std::distance(begin(all), end(all));
  };
  const auto before = threads();
  Gate done;
  Pool pool({.maxConcurrentHandlers = 2});
  for (int i = 0; i < 2000; ++i) pool.executor->post([&] { done.wait(); });
  EXPECT_LE(threads() - before, 2 + 1 + 1) << "those that run, the one that polls, and the watchdog";
  done.open();
}

TEST(Executor, dropsWhatIsQueuedBeforeItWaitsForWhatRuns) {
  Gate begun, dropped;
  Pool pool({.maxConcurrentHandlers = 1});
  struct OpensWhenItGoes {
    Gate& gate;
    ~OpensWhenItGoes() { gate.open(); }
  };
  pool.executor->post([&] {
    begun.open();
    dropped.wait();
  });
  begun.wait();
  pool.executor->post([held = std::make_shared<OpensWhenItGoes>(dropped)] {});
  pool.executor->stop();
  EXPECT_TRUE(dropped.isOpen());
}

TEST(Executor, startsTasksInTheOrderInWhichTheyCame) {
  Counter ran;
  std::vector<int> order;  // one task at a time: no lock needed
  Gate gate;
  Pool pool({.maxConcurrentHandlers = 1});
  pool.executor->post([&] { gate.wait(); });
  for (int i = 0; i < 50; ++i)
    pool.executor->post([&, i] {
      order.push_back(i);
      ran.add();
    });
  gate.open();
  ran.waitFor(50);
  for (int i = 0; i < 50; ++i) EXPECT_EQ(i, order[static_cast<size_t>(i)]);
}

constexpr Duration kNoWatchdog = 2 * test::kHangs;

// What the polling thread read gives rise to a task: that thread runs it, nobody is woken for it.
TEST(Executor, runsWhatAPollGaveRiseToOnThePollingThread) {
  Pool pool({.longRun = kNoWatchdog});
  for (int i = 0; i < 20; ++i) {
    Gate gate;
    std::thread::id poller, runner;
    pool.reactor->at(Clock::now(), [&] {
      poller = std::this_thread::get_id();
      pool.executor->post([&] {
        runner = std::this_thread::get_id();
        gate.open();
      });
    });
    gate.wait();
    EXPECT_EQ(poller, runner);
  }
}

TEST(Executor, goesOnPollingWhileTasksRunHoweverLong) {
  Gate running, gate, ended;
  Pool pool({.maxConcurrentHandlers = 1});
  pool.executor->post([&] {
    running.open();
    gate.wait();  // not one of our waits: only the watchdog sees it
    ended.open();
  });
  running.wait();
  pool.waitForAPoll();
  pool.reactor->at(Clock::now(), [&] { gate.open(); });
  ended.wait();
}

TEST(Executor, goesOnPollingAlsoAfterALongIdleTime) {
  // The watchdog has parked meanwhile, and a task wakes it.
  Pool pool({.maxConcurrentHandlers = 1, .longRun = 100us});
  Gate later;
  pool.reactor->at(Clock::now() + 100ms, [&] { later.open(); });
  later.wait();
  Gate gate, ended;
  pool.executor->post([&] {
    pool.reactor->at(Clock::now(), [&] { gate.open(); });
    gate.wait();
    ended.open();
  });
  ended.wait();
}

// Nothing is under way and the task is short: no thread is woken for it, and nobody polls meanwhile.
TEST(Executor, leavesAShortTaskThatIsAloneToOneThread) {
  // Not at each try: who polls may find its timer at once, when it had no core in between.
  EXPECT_TRUE(test::eventually([] {
    Gate ended;
    std::atomic<bool> polled = false;
    bool polledMeanwhile = false;
    Pool pool({.longRun = kNoWatchdog});
    pool.reactor->at(Clock::now() + 20ms, [&] {
      pool.executor->post([&] {
        pool.reactor->at(Clock::now(), [&] { polled = true; });
        Executor::expectRunTime(100us);
        std::this_thread::sleep_for(20ms);  // the time in which it must not happen
        polledMeanwhile = polled;
        ended.open();
      });
    });
    ended.wait();
    return !polledMeanwhile;
  }));
}

// What was batched for the reactor does not wait for the task.
TEST(Executor, sendsWhatIsAskedForSoonBeforeAShortTaskThatIsAlone) {
  struct Opens final : EventHandler {
    void onEvents(uint32_t) override { gate.open(); }
    Gate gate;
  };
  auto soon = std::make_shared<Opens>();
  Gate ended;
  Pool pool({.longRun = kNoWatchdog});
  pool.reactor->at(Clock::now() + 20ms, [&] {
    pool.executor->post([&] {
      pool.reactor->soon(soon);
      Executor::expectRunTime(100us);
      soon->gate.wait();
      ended.open();
    });
  });
  ended.wait();
}

TEST(Executor, bringsInAThreadForATaskThatIsNotAlone) {
  Gate second, ended;
  Pool pool({.longRun = kNoWatchdog});
  pool.reactor->at(Clock::now() + 20ms, [&] {
    pool.executor->post([&] {
      Executor::expectRunTime(100us);
      second.wait();
      ended.open();
    });
    pool.executor->post([&] { second.open(); });
  });
  ended.wait();
}

TEST(Executor, pollsDuringATaskThatSaysItTakesLong) {
  Gate polled, ended;
  Pool pool({.longRun = kNoWatchdog});
  pool.executor->post([&] {
    pool.reactor->at(Clock::now(), [&] { polled.open(); });
    Executor::expectRunTime(1ms);
    polled.wait();
    ended.open();
  });
  ended.wait();
}

TEST(Executor, callsItsHookOnTheThreadOfEachTaskAfterIt) {
  static thread_local int mark = 0;
  Counter ran;
  std::atomic<int> marked = 0;
  Pool pool;
  pool.executor->setAfterTask([] { mark = 0; });
  for (int i = 0; i < 200; ++i)
    pool.executor->post([&, i] {
      if (std::exchange(mark, 1) != 0) ++marked;
      if (i % 20 == 0) {
        Executor::Blocking blocking;  // another thread goes on
        std::this_thread::yield();
      }
      ran.add();
    });
  ran.waitFor(200);
  EXPECT_EQ(0, marked);
}

TEST(Executor, runsNoMoreTasksAtATimeThanItMay) {
  Counter started;
  Gate gate;
  std::atomic<int> now = 0, most = 0;
  Pool pool({.maxConcurrentHandlers = 3});
  for (int i = 0; i < 12; ++i)
    pool.executor->post([&] {
      int running = ++now;
      for (int seen = most; seen < running && !most.compare_exchange_weak(seen, running);) {}
      started.add();
      gate.wait();
      --now;
    });
  started.waitFor(3);
  for (int i = 0; i < 5; ++i) pool.waitForAPoll();
  EXPECT_EQ(3, started.count());
  EXPECT_EQ(12, pool.executor->active());
  gate.open();
  started.waitFor(12);
  EXPECT_EQ(3, most);
}

// Every one of them waits for all to be there.
TEST(Executor, bringsInThreadsForTasksThatWait) {
  constexpr int kTasks = 64;
  Counter waiting, ended;
  Pool pool({.maxConcurrentHandlers = 2});
  for (int i = 0; i < kTasks; ++i)
    pool.executor->post([&] {
      Executor::Blocking blocking;
      EXPECT_TRUE(blocking.status().ok());
      waiting.add();
      waiting.waitFor(kTasks);
      ended.add();
    });
  ended.waitFor(kTasks);
}

TEST(Executor, refusesTheTaskThatWaitsBeyondTheLimit) {
  Counter waiting, ended;
  Gate gate;
  Pool pool({.maxConcurrentHandlers = 1, .maxBlockedHandlers = 2});
  for (int i = 0; i < 2; ++i)
    pool.executor->post([&] {
      Executor::Blocking blocking;
      EXPECT_TRUE(blocking.status().ok());
      waiting.add();
      gate.wait();
      ended.add();
    });
  waiting.waitFor(2);
  Gate refused;
  pool.executor->post([&] {
    Executor::Blocking blocking;
    EXPECT_EQ(Code::kResourceExhausted, blocking.status().code());
    EXPECT_NE(std::string::npos, blocking.status().message().find("2 handlers wait"));
    refused.open();
  });
  refused.wait();
  gate.open();
  ended.waitFor(2);
  // There is room again.
  ASSERT_TRUE(test::eventually([&] { return pool.executor->active() == 0; }));
  Gate again;
  pool.executor->post([&] {
    EXPECT_TRUE(Executor::Blocking().status().ok());
    again.open();
  });
  again.wait();
}

TEST(Executor, countsNestedWaitsOnceAndOthersNotAtAll) {
  Pool pool({.maxBlockedHandlers = 1});
  EXPECT_FALSE(Executor::onPoolThread());
  Executor::Blocking outside;  // of no pool
  EXPECT_TRUE(outside.status().ok());
  Gate nested;
  pool.executor->post([&] {
    EXPECT_TRUE(Executor::onPoolThread());
    Executor::Blocking outer;
    Executor::Blocking inner;
    EXPECT_TRUE(outer.status().ok());
    EXPECT_TRUE(inner.status().ok());
    nested.open();
  });
  nested.wait();
}

TEST(Executor, givesAPlaceBackWithTheLastPermitOfItsThread) {
  Pool pool({.maxConcurrentHandlers = 2, .maxBlockedHandlers = 1});
  Gate isHeld, wasTried, isFree;
  pool.executor->post([&] {
    auto first = std::make_unique<Executor::Permit>();
    const Executor::Permit last;
    first.reset();
    isHeld.open();
    wasTried.wait();
    EXPECT_TRUE(Executor::Blocking().status().ok());
  });
  isHeld.wait();
  pool.executor->post([&] {
    EXPECT_EQ(Code::kResourceExhausted, Executor::Permit().status().code());
    wasTried.open();
  });
  ASSERT_TRUE(test::eventually([&] { return pool.executor->active() == 0; }));
  pool.executor->post([&] {
    EXPECT_TRUE(Executor::Permit().status().ok());
    isFree.open();
  });
  isFree.wait();
}

// Both threads count as before: the one that made it, and the one that destroyed it.
TEST(Executor, givesAPlaceBackWithAPermitThatAnotherThreadDestroys) {
  Pool pool({.maxConcurrentHandlers = 2, .maxBlockedHandlers = 1});
  std::optional<Executor::Permit> permit;
  Gate isMade, isDestroyed, wasTried, isOver;
  const auto mayWait = [] { return Executor::Blocking().status().ok() && Executor::Permit().status().ok(); };
  pool.executor->post([&] {
    EXPECT_TRUE(permit.emplace().status().ok());
    isMade.open();
    isDestroyed.wait();
    EXPECT_TRUE(mayWait());
    const Executor::Permit own;
    EXPECT_TRUE(own.status().ok());
    isOver.open();
    wasTried.wait();
  });
  isMade.wait();
  pool.executor->post([&] {
    permit.reset();
    EXPECT_TRUE(mayWait());
    isDestroyed.open();
    isOver.wait();
    EXPECT_EQ(Code::kResourceExhausted, Executor::Permit().status().code());
    wasTried.open();
  });
  ASSERT_TRUE(test::eventually([&] { return pool.executor->active() == 0; }));
}

// Another thread could not take its place. It does not matter who polls: a thread of the pool, or one of no pool.
TEST(Executor, refusesAThreadThatPollsOrReads) {
  Pool pool;
  Gate polled;
  pool.reactor->at(Clock::now(), [&] {
    EXPECT_EQ(Code::kResourceExhausted, Executor::Blocking().status().code());
    polled.open();
  });
  polled.wait();
  {
    Serving reads;
    { Serving nested; }
    EXPECT_EQ(Code::kResourceExhausted, Executor::Blocking().status().code());
  }
  EXPECT_TRUE(Executor::Blocking().status().ok());
}

TEST(Executor, stopLetsRunningTasksEndAndDropsTheQueuedOnes) {
  Gate running, gate;
  std::atomic<bool> ended = false, ranQueued = false;
  auto queued = std::make_shared<int>(0), late = std::make_shared<int>(0);
  Pool pool({.maxConcurrentHandlers = 1});
  pool.executor->post([&] {
    running.open();
    gate.wait();
    ended = true;
  });
  running.wait();
  pool.executor->post([&ranQueued, queued] { ranQueued = true; });
  std::thread opener([&] { gate.open(); });
  pool.executor->stop();
  opener.join();
  EXPECT_TRUE(ended);
  if (!ranQueued) {
    EXPECT_EQ(1, queued.use_count());  // dropped, with what it held
  }
  pool.executor->stop();
  pool.executor->post([late] { ADD_FAILURE() << "it is stopped"; });
  EXPECT_EQ(1, late.use_count());
  EXPECT_EQ(0, pool.executor->active());
}

// What a task holds goes before the task counts as done, so that nobody sees an idle pool that still holds something.
TEST(Executor, isIdleOnlyWhenTheTasksAreGoneToo) {
  Pool pool;
  auto held = std::make_shared<int>(0);
  pool.executor->post([held] {});
  ASSERT_TRUE(test::eventually([&] { return pool.executor->active() == 0; }));
  EXPECT_EQ(1, held.use_count());
}

TEST(Executor, sleepsWhileThereIsNothingToDo) {
  Pool pool({.longRun = 100us});
  auto timesThatItSlept = [] {
    rusage usage{};
    ::getrusage(RUSAGE_SELF, &usage);
    return usage.ru_nvcsw;
  };
  // The watchdog must park first. A ticking one would sleep two thousand times in each try.
  EXPECT_TRUE(test::eventually([&] {
    Gate later;
    const auto before = timesThatItSlept();
    pool.reactor->at(Clock::now() + 200ms, [&] { later.open(); });
    later.wait();
    return timesThatItSlept() - before < 500;
  }));
}

TEST(ExecutorOptions, areChecked) {
  EXPECT_TRUE(ExecutorOptions().validate().ok());
  EXPECT_EQ(Code::kInvalidArgument, ExecutorOptions{.maxConcurrentHandlers = -1}.validate().code());
  EXPECT_EQ(Code::kInvalidArgument, ExecutorOptions{.maxBlockedHandlers = 0}.validate().code());
  EXPECT_EQ(Code::kInvalidArgument, ExecutorOptions{.longRun = 0ms}.validate().code());
}

}  // namespace
}  // namespace treadle::io::executor_test

#include "treadle/core/io/reactor.h"

#include <sys/socket.h>

#include <thread>

#include "tests/support/gate.h"
#include "tests/support/reactor_thread.h"

namespace treadle::io::reactor_test {
namespace {

using namespace std::chrono_literals;
using test::polledOnce, test::polledUntil;

// Calls a function for each event.
struct Handler : EventHandler {
  explicit Handler(std::function<void(uint32_t)> callback) : onEvent(std::move(callback)) {}
  void onEvents(uint32_t events) override { onEvent(events); }
  std::function<void(uint32_t)> onEvent;
};

auto handler(std::function<void(uint32_t)> callback) { return std::make_shared<Handler>(std::move(callback)); }

struct Pair {
  Fd a, b;
  void writeToA() { EXPECT_EQ(1, ::write(b.get(), "x", 1)); }
  void readFromA() {
    char byte;
    EXPECT_EQ(1, ::read(a.get(), &byte, 1));
  }
};

Pair connectedPair() {
  int ends[2];
  EXPECT_EQ(0, ::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends));
  return {Fd(ends[0]), Fd(ends[1])};
}

std::unique_ptr<Reactor> makeReactor() { return valueOrThrow(Reactor::make()); }

TEST(ReactorTimers, comeInTheOrderOfTheirDueTimesAndNotBefore) {
  auto reactor = makeReactor();
  TimePoint start = Clock::now();
  std::vector<int> order;
  for (int i : {3, 1, 2})
    reactor->at(start + i * 5ms, [&order, start, i] {
      EXPECT_GE(Clock::now(), start + i * 5ms);
      order.push_back(i);
    });
  // Of equal due times the one that was asked for first.
  reactor->at(start + 10ms, [&] { order.push_back(20); });
  EXPECT_TRUE(polledUntil(*reactor, [&] { return order.size() >= 4; }));
  EXPECT_EQ((std::vector<int>{1, 2, 20, 3}), order);
}

TEST(ReactorTimers, aCancelledOneNeverFiresAndLetsGoOfItsCallback) {
  auto reactor = makeReactor();
  auto held = std::make_shared<int>(1);
  bool fired = false, later = false;
  Reactor::TimerId first = reactor->at(Clock::now(), [&fired, held] { fired = true; });
  reactor->at(Clock::now() + 1ms, [&] { later = true; });
  EXPECT_EQ(2, held.use_count());
  EXPECT_TRUE(reactor->cancel(first));
  EXPECT_EQ(1, held.use_count());
  EXPECT_FALSE(reactor->cancel(first));
  EXPECT_FALSE(reactor->cancel(12345));
  EXPECT_TRUE(polledUntil(*reactor, [&] { return later; }));
  EXPECT_FALSE(fired);
}

TEST(ReactorTimers, mayMakeAndCancelTimersThemselves) {
  auto reactor = makeReactor();
  Reactor::TimerId second = 0, third = 0;
  bool cancelled = false, selfCancel = true, done = false;
  TimePoint now = Clock::now();
  Reactor::TimerId first = reactor->at(now, [&] {
    cancelled = reactor->cancel(second);
    selfCancel = reactor->cancel(first);
    third = reactor->at(now, [&] { done = true; });
  });
  second = reactor->at(now, [] { ADD_FAILURE() << "it was cancelled"; });
  EXPECT_TRUE(polledUntil(*reactor, [&] { return done; }));
  EXPECT_TRUE(cancelled);
  EXPECT_FALSE(selfCancel);
  EXPECT_FALSE(reactor->cancel(third));
}

TEST(ReactorTimers, anEarlierOneWakesAPollThatWaitsForALaterOne) {
  test::ReactorThread reactor;
  reactor->at(Clock::now() + 1h, [] { ADD_FAILURE(); });
  test::Gate gate;
  reactor->at(Clock::now() + 1ms, [&] { gate.open(); });
  gate.wait();
}

TEST(Reactor, wakeEndsOnePollThatIsOrWillBe) {
  auto reactor = makeReactor();
  reactor->wake();
  reactor->wake();
  EXPECT_TRUE(polledOnce(*reactor));
  bool fired = false;
  reactor->at(Clock::now() + 1ms, [&] { fired = true; });
  EXPECT_TRUE(polledUntil(*reactor, [&] { return fired; }));
}

// While it looks for more rather than sleep it misses nothing: events, timers, and those who wake it.
TEST(Reactor, missesNothingWhileItPollsBusily) {
  auto reactor = valueOrThrow(Reactor::make(20ms));
  Pair pair = connectedPair();
  int readable = 0, fired = 0;
  ASSERT_TRUE(reactor
                  ->add(pair.a.get(), EPOLLIN, handler([&](uint32_t) {
                          pair.readFromA();
                          ++readable;
                        }))
                  .ok());
  auto soon = handler([&](uint32_t) {
    ++fired;
    reactor->wake();  // the poll that called this would go on to wait
  });
  for (int round = 1; round <= 50; ++round) {
    pair.writeToA();
    ASSERT_TRUE(polledUntil(*reactor, [&] { return readable >= round; }));  // from here on it is busy
    EXPECT_EQ(round, readable);
    TimePoint due = Clock::now() + 1ms;
    reactor->at(due, [&] { ++fired; });
    ASSERT_TRUE(polledUntil(*reactor, [&] { return fired >= 2 * round - 1; }));
    EXPECT_EQ(2 * round - 1, fired);
    EXPECT_GE(Clock::now(), due);
    std::thread other([&] { reactor->soon(soon); });
    EXPECT_TRUE(polledUntil(*reactor, [&] { return fired >= 2 * round; }));
    other.join();
    EXPECT_EQ(2 * round, fired);
    if (HasFailure()) break;
  }
  reactor->remove(pair.a.get());
}

// It burns the processor no longer than it was asked to, and not once something has come.
TEST(Reactor, staysAwakeUntilSomethingComesOrItsTimeIsOver) {
  auto reactor = valueOrThrow(Reactor::make());
  auto processorTimeOf = [&](Duration wait) {
    bool fired = false;
    reactor->at(Clock::now() + wait, [&] { fired = true; });
    auto now = [] {
      timespec time{};
      ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
      return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
    };
    auto before = now();
    EXPECT_TRUE(polledUntil(*reactor, [&] { return fired; }));
    return now() - before;
  };
  reactor->stayAwake(Clock::now() + 1ms);
  EXPECT_LT(processorTimeOf(200ms), 100ms);
  reactor->stayAwake(Clock::now() + std::chrono::hours(1));
  reactor->wake();
  EXPECT_TRUE(polledOnce(*reactor));
  EXPECT_LT(processorTimeOf(200ms), 100ms);
}

TEST(Reactor, saysWhetherItHadToWait) {
  auto reactor = valueOrThrow(Reactor::make());
  // Not at each try: this thread may lose its core in between.
  EXPECT_TRUE(test::withLongerLimits(100ms, [&](Duration limit) {
    reactor->at(Clock::now() + limit, [] {});
    return reactor->poll();
  }));
  reactor->at(test::patience(), [] {});  // ends a poll that nothing else ends
  EXPECT_TRUE(test::eventually([&] {
    reactor->wake();
    return !reactor->poll();
  }));
}

TEST(Reactor, callsForWhatItWasAskedForUntilRemoved) {
  auto reactor = makeReactor();
  Pair pair = connectedPair();
  int readable = 0, writable = 0;
  std::weak_ptr<EventHandler> weak;
  {
    auto both = handler([&](uint32_t events) {
      readable += (events & EPOLLIN) != 0 ? 1 : 0;
      writable += (events & EPOLLOUT) != 0 ? 1 : 0;
    });
    weak = both;
    ASSERT_TRUE(reactor->add(pair.a.get(), EPOLLIN, both).ok());
  }
  EXPECT_FALSE(weak.expired());  // the reactor holds it
  pair.writeToA();
  EXPECT_TRUE(polledOnce(*reactor));
  EXPECT_TRUE(polledOnce(*reactor));  // level-triggered: what is left comes again
  EXPECT_EQ(2, readable);
  EXPECT_EQ(0, writable);
  reactor->change(pair.a.get(), EPOLLOUT);
  EXPECT_TRUE(polledOnce(*reactor));
  EXPECT_EQ(2, readable);
  EXPECT_EQ(1, writable);
  reactor->remove(pair.a.get());
  EXPECT_TRUE(weak.expired());
  reactor->wake();
  EXPECT_TRUE(polledOnce(*reactor));
  EXPECT_EQ(1, writable);
}

TEST(Reactor, tellsOfAPeersEndEvenWhenNothingIsAskedFor) {
  auto reactor = makeReactor();
  Pair pair = connectedPair();
  uint32_t got = 0;
  ASSERT_TRUE(reactor->add(pair.a.get(), 0, handler([&](uint32_t events) { got |= events; })).ok());
  pair.b.reset();
  EXPECT_TRUE(polledOnce(*reactor));
  EXPECT_NE(0U, got & EPOLLHUP);
}

TEST(Reactor, takesAChangeOrRemovalOfAStrangerLightly) {
  auto reactor = makeReactor();
  reactor->change(12345, EPOLLIN);
  reactor->remove(12345);
  EXPECT_EQ(Code::kResourceExhausted, reactor->add(-1, EPOLLIN, handler([](uint32_t) {})).code());
  Pair pair = connectedPair();
  ASSERT_TRUE(reactor->add(pair.a.get(), EPOLLIN, handler([](uint32_t) {})).ok());
  EXPECT_FALSE(reactor->add(pair.a.get(), EPOLLIN, handler([](uint32_t) {})).ok());
}

TEST(Reactor, doesNotCallWhoWasRemovedInTheSameTurn) {
  auto reactor = makeReactor();
  Pair first = connectedPair(), second = connectedPair();
  int calls = 0;
  auto removeBoth = handler([&](uint32_t) {
    ++calls;
    reactor->remove(first.a.get());
    reactor->remove(second.a.get());
  });
  ASSERT_TRUE(reactor->add(first.a.get(), EPOLLIN, removeBoth).ok());
  ASSERT_TRUE(reactor->add(second.a.get(), EPOLLIN, removeBoth).ok());
  first.writeToA();
  second.writeToA();
  EXPECT_TRUE(polledOnce(*reactor));
  EXPECT_EQ(1, calls);
}

TEST(Reactor, noticesWhatOtherThreadsAddWhileItPolls) {
  test::ReactorThread reactor;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      for (int i = 0; i < 50; ++i) {
        Pair pair = connectedPair();
        test::Gate first, second;
        auto onReadable = handler([&](uint32_t) {
          pair.readFromA();
          (first.isOpen() ? second : first).open();
        });
        ASSERT_TRUE(reactor->add(pair.a.get(), EPOLLIN, onReadable).ok());
        pair.writeToA();
        first.wait();
        reactor->change(pair.a.get(), 0);
        pair.writeToA();
        reactor->change(pair.a.get(), EPOLLIN);
        second.wait();
        reactor->remove(pair.a.get());
        // A callback that has begun may still run: nothing it uses goes before it has ended.
        test::Gate turned;
        reactor->at(Clock::now(), [&] { turned.open(); });
        turned.wait();
      }
    });
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace treadle::io::reactor_test

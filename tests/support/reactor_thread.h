#pragma once
// A reactor and one thread that polls it: what an executor does, without tasks. And the same on the test's own thread.

#include <atomic>
#include <functional>
#include <memory>
#include <thread>

#include "tests/support/gate.h"
#include "treadle/core/base/error.h"
#include "treadle/core/io/reactor.h"

namespace treadle::test {

class ReactorThread {
 public:
  ReactorThread() : reactor_(valueOrThrow(io::Reactor::make())), thread_([this] { loop(); }) {}
  ~ReactorThread() { stop(); }

  io::Reactor& operator*() { return *reactor_; }
  io::Reactor* operator->() { return reactor_.get(); }

  // No callback runs any more when it returns. Idempotent.
  void stop() {
    stopping_.store(true);
    reactor_->wake();
    if (thread_.joinable()) thread_.join();
  }

 private:
  void loop() {
    while (!stopping_.load()) reactor_->poll();
  }

  std::unique_ptr<io::Reactor> reactor_;
  std::atomic<bool> stopping_ = false;
  std::thread thread_;
};

// Polls until `isTrue`. A timer ends a poll that nothing else ends.
inline ::testing::AssertionResult polledUntil(io::Reactor& reactor, const std::function<bool()>& isTrue) {
  bool over = false;
  const io::Reactor::TimerId limit = reactor.at(patience(), [&] { over = true; });
  while (!over && !isTrue()) reactor.poll();
  reactor.cancel(limit);
  return over ? waitedInVain("no event that the reactor was polled for came") : ::testing::AssertionSuccess();
}

// Polls once: something is there, or the reactor was woken.
inline ::testing::AssertionResult polledOnce(io::Reactor& reactor) {
  int looks = 0;
  return polledUntil(reactor, [&] { return looks++ > 0; });
}

}  // namespace treadle::test

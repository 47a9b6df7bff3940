#pragma once
// A reactor and one thread that polls it: what an executor does, without tasks.

#include <atomic>
#include <memory>
#include <thread>

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

}  // namespace treadle::test

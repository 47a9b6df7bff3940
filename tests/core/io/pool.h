#pragma once
// A reactor and the executor that polls it.

#include <memory>

#include "tests/support/gate.h"
#include "treadle/core/base/clock.h"
#include "treadle/core/base/error.h"
#include "treadle/core/io/executor.h"
#include "treadle/core/io/reactor.h"

namespace treadle::test {

// Declare it after what its tasks use: it waits for them when it goes.
struct Pool {
  explicit Pool(io::ExecutorOptions options = {})
      : reactor(valueOrThrow(io::Reactor::make())), executor(std::make_unique<io::Executor>(*reactor, options)) {}

  // Returns when the reactor has been polled anew.
  void waitForAPoll() {
    Gate polled;
    reactor->at(Clock::now(), [&] { polled.open(); });
    polled.wait();
  }

  std::unique_ptr<io::Reactor> reactor;
  std::unique_ptr<io::Executor> executor;
};

}  // namespace treadle::test

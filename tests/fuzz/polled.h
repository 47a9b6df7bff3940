#pragma once
// A reactor that no thread runs: what is ready is handled when the fuzzer says so.

#include "treadle/core/io/reactor.h"

namespace treadle::fuzz {

// Twice, as what is handled may make more ready.
inline void pollAll(io::Reactor& reactor) {
  for (int i = 0; i < 2; ++i) {
    bool polled = false;
    reactor.at(Clock::now(), [&] { polled = true; });
    while (!polled) reactor.poll();
  }
}

}  // namespace treadle::fuzz

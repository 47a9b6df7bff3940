#pragma once
// What a worker and its process hold, as text of key=value. Any thread.

#include <malloc.h>

#include <fstream>
#include <string>

#include "tests/soak/handlers.h"

namespace treadle::soak {

// All of it is 0 when the worker is at rest and nobody refers to anything.
struct Held {
  size_t owned = 0, forks = 0, references = 0, pending = 0, calls = 0, handlers = 0;
  uint64_t waits = 0, lateWaits = 0;

  static Held by(const Worker& worker) {
    const Metrics now = worker.metrics();
    const WaitCounts& waits = waitCounts();
    // Ended first: none can end that has not begun.
    const uint64_t ended = waits.ended;
    return {now.valuesOwned,  now.forksOfOwned,    now.referencesHeld,  now.referencesPending,
            now.callsPending, now.handlersRunning, waits.begun - ended, waits.late};
  }
  bool nothing() const { return owned + forks + references + pending + calls + handlers + waits == 0; }
  std::string toText() const {
    return "owned=" + std::to_string(owned) + " forks=" + std::to_string(forks) +
           " held=" + std::to_string(references) + " pending=" + std::to_string(pending) +
           " calls=" + std::to_string(calls) + " handlers=" + std::to_string(handlers) +
           " waits=" + std::to_string(waits) + " late=" + std::to_string(lateWaits);
  }
};

// Of this process: what is resident, how much of that is memory shared with the others, and what the heap has given out
// (malloc and mmap), in KiB.
inline std::string usage() {
  size_t resident = 0, shared = 0;
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    if (word == "VmRSS:") status >> resident;
    if (word == "RssShmem:") status >> shared;
  }
  const struct mallinfo2 heap = ::mallinfo2();
  return "rss_kb=" + std::to_string(resident) + " shared_kb=" + std::to_string(shared) +
         " heap_kb=" + std::to_string((heap.uordblks + heap.hblkhd) / 1024);
}

}  // namespace treadle::soak

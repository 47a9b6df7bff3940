#pragma once
// What the worker in peer_program.cc offers.

#include <signal.h>
#include <unistd.h>

#include "tests/core/worker/bulk.h"
#include "treadle/core/worker/worker.h"

namespace treadle::test {

inline int peerAdd(int a, int b) { return a + b; }
inline void peerDie() { ::kill(::getpid(), SIGKILL); }
inline void peerWait() {
  blocking([] { ::pause(); });
}

inline Bulk peerEcho(Bulk bulk) { return bulk; }
// Of ordinary memory.
inline Bulk peerMake(size_t size, unsigned value) { return bulkOf(size, value); }
inline size_t peerSize(const Bulk& bulk) { return bulk.buffer.sizeBytes; }
inline int64_t peerSum(const Bulk& bulk) { return sumOf(bulk); }
inline std::vector<int64_t> peerSums(const std::vector<Bulk>& bulks) {
  std::vector<int64_t> sums;
  for (const Bulk& bulk : bulks) sums.push_back(sumOf(bulk));
  return sums;
}

// The limit of its memory, what is in use, and what is kept.
inline std::vector<uint64_t> peerMemory(CallContext& call) {
  Metrics now = call.worker().metrics();
  return {now.memoryLimitBytes, now.memory.usedBytes, now.memory.freeBytes};
}
inline void peerTrim() { trimMemory(); }

// For as long as the process lives.
inline void peerKeep(RRef<std::string> ref) {
  static Mutex mutex;
  static auto* const kept = new std::vector<RRef<std::string>>;
  MutexLock lock(mutex);
  kept->push_back(std::move(ref));
}

inline Functions peerFunctions() {
  Functions functions;
  functions.add<&peerKeep>("keepForGood")
      .add<&peerSize>("size")
      .add<&peerMake>("make")
      .add<&peerMemory>("memory")
      .add<&peerTrim>("trim");
  functions.add<&peerEcho>("echo").add<&peerSum>("sum").add<&peerSums>("sums");
  return functions.add<&peerAdd>("add").add<&peerDie>("die").add<&peerWait>("wait");
}

}  // namespace treadle::test

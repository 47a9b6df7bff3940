#pragma once
// Gives memory of lost peers back to the system. One tensor that lies in a peer's arena keeps the whole arena mapped;
// once the peer's process has ended, nobody needs the other pages (io::SharedMemory::reclaim).
//
// Works on a thread of its own: removing pages takes long, and the threads that lose a peer or drop a tensor must not
// wait for it. The kernel does not report that a lock is gone, so the thread looks again after 10 ms, then after twice
// as long each time, up to 10 s. It ends when no arena is left. Owned by the pool; any thread may call anything.

#include <atomic>
#include <memory>
#include <vector>

#include "treadle/core/base/mutex.h"
#include "treadle/core/base/unique_function.h"
#include "treadle/core/io/shared_memory.h"
#include "treadle/core/io/thread_cache.h"

namespace treadle::memory {

class Reclaimer {
 public:
  // Returns the ranges that are in use, sorted by `begin`. They only become fewer.
  using Kept = UniqueFunction<std::vector<io::SharedMemory::Range>()>;

  ~Reclaimer();

  // Reclaims what lies outside of `kept` until that is empty, then unmaps `arena`. Calls `kept` on the reclaimer's
  // thread, with no lock held. When the system has no thread left, the next call of `add` or `hurry` tries again.
  void add(std::shared_ptr<const io::SharedMemory> arena, Kept kept);
  // Looks soon, 10 ms after the last look at the earliest: something is in use no longer.
  void hurry();
  // All that was in use when the thread looked last.
  size_t keptBytes() const { return keptBytes_.load(); }

 private:
  struct Job {
    std::shared_ptr<const io::SharedMemory> arena;
    Kept kept;
  };

  void start() TREADLE_REQUIRES(mutex_);
  void loop();
  static bool reclaim(Job& job, size_t& keptBytes);
  bool waitForNext(std::vector<Job>& jobs);

  Mutex mutex_;
  CondVar changed_;
  std::vector<Job> added_ TREADLE_GUARDED_BY(mutex_);
  Duration pause_ TREADLE_GUARDED_BY(mutex_) = {};
  bool hurry_ TREADLE_GUARDED_BY(mutex_) = false;
  bool running_ TREADLE_GUARDED_BY(mutex_) = false;
  bool stopping_ TREADLE_GUARDED_BY(mutex_) = false;
  std::atomic<size_t> keptBytes_ = 0;
  io::ThreadCache thread_;  // the last member: it waits for the thread
};

}  // namespace treadle::memory

#pragma once
// Copies large stretches of memory with the help of one more thread: two cores copy nearly twice as fast as one
// (docs/rooms/memory.md has the figures). The stretch is cut into pieces which both take as they come, so that a
// helper that gets no core costs nothing but its own piece. Any thread.
//
// Budget of a copy of less than kSharedBytes: nothing beside it. From there on: two locks and a notify, which wakes the
// helper when it sleeps, at the end a few yields until it is done with its last piece.

#include <atomic>
#include <thread>

#include "treadle/core/base/buffer.h"
#include "treadle/core/base/mutex.h"
#include "treadle/core/base/unique_function.h"

namespace treadle::memory {

class Copier {
 public:
  // Smaller ones are not worth a wake-up.
  static constexpr size_t kSharedBytes = 1U << 20;

  Copier() = default;
  ~Copier();

  // Calls `copyPiece(offset, size)` until [0, sizeBytes) is covered, on this thread and, for kSharedBytes and more when
  // nobody else uses it, on the helper. It must not throw.
  template <class F>
  void copy(size_t sizeBytes, F&& copyPiece) {
    if (sizeBytes < kSharedBytes) return copyPiece(size_t{0}, sizeBytes);
    run(sizeBytes, [&](size_t offset, size_t size) { copyPiece(offset, size); });
  }

 private:
  struct Job {
    size_t sizeBytes;
    UniqueFunction<void(size_t, size_t)> copyPiece;
    std::atomic<size_t> next = 0;
  };

  void run(size_t sizeBytes, UniqueFunction<void(size_t, size_t)> copyPiece);
  static void takePieces(Job& job);
  void awaitHelper(const Job& job);
  void helperLoop();

  Mutex mutex_;
  CondVar wakeHelper_, helperDone_;
  std::thread helper_ TREADLE_GUARDED_BY(mutex_);
  Job* job_ TREADLE_GUARDED_BY(mutex_) = nullptr;  // offered to the helper
  std::atomic<bool> helping_ = false;              // set with the lock held
  bool stopping_ TREADLE_GUARDED_BY(mutex_) = false;
};

}  // namespace treadle::memory

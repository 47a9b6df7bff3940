#include "treadle/core/memory/copier.h"

#include <algorithm>
#include <system_error>

namespace treadle::memory {
namespace {

// Large enough that taking a piece costs nothing beside copying it, small enough that who ends first waits little for
// the other.
constexpr size_t kPieceBytes = 256U << 10;

}  // namespace

Copier::~Copier() {
  std::thread helper;
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    wakeHelper_.notifyAll();
    helper = std::move(helper_);
  }
  if (helper.joinable()) helper.join();
}

void Copier::takePieces(Job& job) {
  for (size_t begin; (begin = job.next.fetch_add(kPieceBytes)) < job.sizeBytes;)
    job.copyPiece(begin, std::min(kPieceBytes, job.sizeBytes - begin));
}

void Copier::run(size_t sizeBytes, UniqueFunction<void(size_t, size_t)> copyPiece) {
  Job job{sizeBytes, std::move(copyPiece)};
  bool offered = false;
  {
    MutexLock lock(mutex_);
    if (job_ == nullptr && !helping_ && std::thread::hardware_concurrency() > 1) {
      try {
        if (!helper_.joinable()) helper_ = std::thread([this] { helperLoop(); });
        job_ = &job;
        offered = true;
        wakeHelper_.notifyOne();
      } catch (const std::system_error&) {  // no thread is to be had: then without
      }
    }
  }
  takePieces(job);
  if (!offered) return;
  MutexLock lock(mutex_);
  if (job_ == &job) job_ = nullptr;  // the helper did not come in time
  while (helping_) helperDone_.wait(lock);
}

void Copier::helperLoop() {
  MutexLock lock(mutex_);
  while (!stopping_) {
    if (job_ == nullptr) {
      wakeHelper_.wait(lock);
      continue;
    }
    Job& job = *job_;
    job_ = nullptr;
    helping_ = true;
    lock.unlock();
    takePieces(job);
    lock.lock();
    helping_ = false;
    helperDone_.notifyAll();
  }
}

}  // namespace treadle::memory

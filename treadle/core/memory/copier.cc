#include "treadle/core/memory/copier.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <system_error>

#include "treadle/core/io/spin.h"

namespace treadle::memory {
namespace {

// Large enough that taking a piece costs nothing beside copying it and the processor can read ahead, small enough that
// who ends first waits little for the other.
constexpr size_t kLeastPiece = 128U << 10, kMostPiece = 1U << 20;
constexpr size_t kPieces = 32;
// The helper is there for cores that nobody else wants: whoever has a small message to handle goes first.
constexpr int kHelperNice = 10;
constexpr Duration kLastPiece = std::chrono::microseconds(100);

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
  const size_t piece = std::clamp(job.sizeBytes / kPieces / kLeastPiece * kLeastPiece, kLeastPiece, kMostPiece);
  for (size_t begin; (begin = job.next.fetch_add(piece)) < job.sizeBytes;)
    job.copyPiece(begin, std::min(piece, job.sizeBytes - begin));
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
  if (offered) awaitHelper(job);
}

// It has a piece left at most, which takes less time than going to sleep and being woken.
void Copier::awaitHelper(const Job& job) {
  MutexLock lock(mutex_);
  if (job_ == &job) job_ = nullptr;  // the helper did not come in time
  if (!helping_) return;
  lock.unlock();
  io::Spin spin(kLastPiece);
  while (helping_ && spin.again()) {}
  lock.lock();
  while (helping_) helperDone_.wait(lock);
}

void Copier::helperLoop() {
  (void)::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), kHelperNice);
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

#include "treadle/core/rpc/credits.h"

#include <algorithm>

#include "treadle/core/io/executor.h"

namespace treadle::rpc {

size_t Credits::costOf(size_t payloadBytes, std::span<const Buffer> buffers, size_t inputs) const {
  size_t bytes = kRequestBytes + payloadBytes + inputs * kInputBytes;
  for (const Buffer& buffer : buffers) bytes += kBufferBytes + buffer.sizeBytes;
  return std::min(bytes, limitBytes_ - limitBytes_ / 8);
}

bool Credits::tryTake(size_t bytes) {
  uint64_t taken = taken_.load(std::memory_order_relaxed);
  do {
    if (taken + bytes > limitBytes_) return false;
  } while (!taken_.compare_exchange_weak(taken, taken + bytes));
  return true;
}

// The mark goes up before the look at what has come back: who gives back after that look sees the mark, and grants.
Status Credits::take(size_t bytes, TimePoint deadline) {
  if (tryTake(bytes)) return {};
  io::Executor::Blocking blocking;
  TREADLE_RETURN_IF_ERROR(blocking.status());
  MutexLock lock(mutex_);
  if (!closed_.ok()) return closed_;
  Waiter self{bytes};
  waiters_.push_back(&self);
  taken_.fetch_or(kSomebodyWaits);
  grant();
  while (!self.granted && closed_.ok())
    if (!self.changed.waitUntil(lock, deadline) && !self.granted && closed_.ok()) {
      Status why = exhausted(bytes);
      std::erase(waiters_, &self);
      grant();  // there may be room for the next, which needs less
      return why;
    }
  return self.granted ? Status() : closed_;
}

void Credits::giveBack(size_t bytes) {
  if ((taken_.fetch_sub(bytes) & kSomebodyWaits) == 0) return;
  MutexLock lock(mutex_);
  grant();
}

// While the mark is up nobody takes but in here, so there is no less room than it looks.
void Credits::grant() {
  while (!waiters_.empty() && takenBytes() + waiters_.front()->bytes <= limitBytes_) {
    Waiter& next = *waiters_.front();
    waiters_.pop_front();
    taken_.fetch_add(next.bytes);
    next.granted = true;
    next.changed.notifyOne();
  }
  if (waiters_.empty()) taken_.fetch_and(~kSomebodyWaits);
}

void Credits::close(const Status& why) {
  MutexLock lock(mutex_);
  if (closed_.ok()) closed_ = why;
  for (Waiter* waiter : waiters_) waiter->changed.notifyOne();
  waiters_.clear();
  taken_.fetch_and(~kSomebodyWaits);
}

Status Credits::exhausted(size_t bytes) const {
  return resourceExhausted("the request of " + std::to_string(bytes) +
                           " bytes waited until its time was up, as requests of " + std::to_string(takenBytes()) +
                           " bytes to that worker are not answered and at most " + std::to_string(limitBytes_) +
                           " may be (JoinOptions::maxInFlightBytes); wait for answers before calling on, give the " +
                           "call more time, or raise the limit on all workers");
}

}  // namespace treadle::rpc

#include "treadle/core/io/spin.h"

#include <algorithm>
#include <thread>

namespace treadle::io {
namespace {

// A yield to nobody takes a microsecond at most, one to another thread that has work as long as its turn.
constexpr Duration kSomebodyRan = std::chrono::microseconds(30);
constexpr Duration kCoresAreBusyFor = std::chrono::milliseconds(1);

thread_local TimePoint notBefore{};

}  // namespace

Spin::Spin(Duration window) : end_(TimePoint()) {
  if (window <= Duration::zero()) return;
  TimePoint now = Clock::now();
  if (now >= notBefore) end_ = now + window;
}

void Spin::prolong(TimePoint until) {
  TimePoint now = Clock::now();
  if (now >= notBefore) end_ = std::max(end_, until);
}

bool Spin::again() {
  TimePoint before = Clock::now();
  if (before >= end_) return false;
  std::this_thread::yield();
  TimePoint after = Clock::now();
  if (after - before > kSomebodyRan) {
    notBefore = after + kCoresAreBusyFor;
    end_ = TimePoint();  // one more look, then sleep
  }
  return true;
}

}  // namespace treadle::io

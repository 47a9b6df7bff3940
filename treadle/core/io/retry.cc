#include "treadle/core/io/retry.h"

#include <algorithm>
#include <thread>

namespace treadle::io {

bool waitForRetry(Duration& interval, TimePoint deadline) {
  constexpr Duration kFirst = std::chrono::milliseconds(2), kMost = std::chrono::milliseconds(100);
  interval = std::clamp(interval * 2, kFirst, kMost);
  if (deadline - Clock::now() < interval) return false;
  std::this_thread::sleep_for(interval);
  return true;
}

Result<Fd> connectWithRetry(const Address& address, TimePoint deadline) {
  Duration interval{};
  for (;;) {
    Result<Fd> fd = connectTo(address, deadline);
    if (fd.ok() || !waitForRetry(interval, deadline)) return fd;
  }
}

}  // namespace treadle::io

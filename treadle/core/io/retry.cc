#include "treadle/core/io/retry.h"

#include <algorithm>

#include "treadle/core/io/interruption.h"

namespace treadle::io {

bool waitForRetry(Duration& interval, TimePoint deadline) {
  constexpr Duration kFirst = std::chrono::milliseconds(2), kMost = std::chrono::milliseconds(100);
  interval = std::clamp(interval * 2, kFirst, kMost);
  if (deadline - Clock::now() < interval) return false;
  (void)waitFor(-1, 0, deadlineAfter(interval));
  return Interruption::here() == nullptr || !Interruption::here()->came();
}

Result<Fd> connectWithRetry(const Address& address, TimePoint deadline) {
  Duration interval{};
  for (;;) {
    Result<Fd> fd = connectTo(address, deadline);
    if (fd.ok() || !waitForRetry(interval, deadline)) return fd;
  }
}

}  // namespace treadle::io

#pragma once
// Connecting to who may not have started yet. Blocking, on the thread that joins.

#include "treadle/core/io/socket.h"

namespace treadle::io {

// Tries again, at growing intervals of at most 100 ms (nothing tells when a stranger begins to listen), until someone
// listens there or the deadline passes; then the last failure.
Result<Fd> connectWithRetry(const Address& address, TimePoint deadline);

// Waits for the next try: false when the deadline or an Interruption comes first.
bool waitForRetry(Duration& interval, TimePoint deadline);

}  // namespace treadle::io

#pragma once
// What the summation services of a worker have moved and summed, over all of them and since it joined. Any thread.

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace treadle::summation {

// Counters at about the same moment.
struct SummationCounters {
  // That this worker takes part in now, and that have begun; not on other workers of a team than its first.
  size_t services = 0;
  // Workers of them, other than this one, of a team the first.
  size_t clients = 0;
  uint64_t bytesReceived = 0, bytesSent = 0;
  uint64_t sums = 0;  // of parts of tensors, of at most 4 MiB each, that this worker has made
};

struct Traffic {
  std::atomic<uint64_t> bytesReceived = 0, bytesSent = 0, sums = 0;
};

}  // namespace treadle::summation

namespace treadle {
using summation::SummationCounters;
}  // namespace treadle

#pragma once
// What a summation server does, as lines of text: clients, bytes and sums per second. Free functions are pure; a
// ServerReport has a thread, and one thread makes and destroys it.

#include <functional>
#include <string>
#include <thread>

#include "treadle/core/base/clock.h"
#include "treadle/core/base/mutex.h"
#include "treadle/core/summation/traffic.h"

namespace treadle::cli {

// "1 service with 4 workers: 118 MB/s in, 118 MB/s out, 29.4 sums/s", of what was done between the two.
std::string textOf(const SummationCounters& before, const SummationCounters& now, Duration between);
// "12.0 GB in, 12.0 GB out, 3000 sums", of all that was done.
std::string totalOf(const SummationCounters& counters);

// Calls `write` with what was done since the last line, every `interval` in which something was done. `kNoTimeout`:
// never. Its end waits for a `write` that is under way.
class ServerReport {
 public:
  ServerReport(Duration interval, std::function<SummationCounters()> read,
               std::function<void(const std::string& line)> write);
  ~ServerReport();

 private:
  void run();

  const Duration interval_;
  const std::function<SummationCounters()> read_;
  const std::function<void(const std::string& line)> write_;
  Mutex mutex_;
  CondVar changed_;
  bool ends_ TREADLE_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace treadle::cli

#pragma once
// CPU time of this process.

#include <time.h>

#include <chrono>
#include <thread>

namespace bench {

inline double cpuMicroseconds() {
  timespec time{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) * 1e6 + static_cast<double>(time.tv_nsec) / 1e3;
}

// Microseconds of CPU time in each second, while the calling thread waits for so long.
inline double cpuTimePerSecond(std::chrono::duration<double> length) {
  double begin = cpuMicroseconds();
  std::this_thread::sleep_for(length);
  return (cpuMicroseconds() - begin) / length.count();
}

}  // namespace bench

#pragma once
// How many sockets and files a test may have open.

#include <sys/resource.h>

namespace treadle::test {

// Whether this process may have so many descriptors; its limit is raised as far as it may be.
inline bool mayHaveDescriptors(rlim_t count) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return false;
  limit.rlim_cur = limit.rlim_max;
  return ::setrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur >= count;
}

}  // namespace treadle::test

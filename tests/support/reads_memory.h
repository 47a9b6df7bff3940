#pragma once
// Whether processes of this user may read each other's memory: Yama may forbid it to who lacks CAP_SYS_PTRACE.

#include <cstdint>
#include <fstream>
#include <string>

namespace treadle::test {

inline bool readsMemory() {
  constexpr int kSysPtrace = 19, kNobody = 3;
  int scope = 0;
  std::ifstream("/proc/sys/kernel/yama/ptrace_scope") >> scope;
  std::ifstream status("/proc/self/status");
  uint64_t capabilities = 0;
  for (std::string name; status >> name;)
    if (name == "CapEff:") status >> std::hex >> capabilities;
  return scope == 0 || (scope < kNobody && (capabilities >> kSysPtrace & 1) != 0);
}

}  // namespace treadle::test

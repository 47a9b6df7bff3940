#include "treadle/cli/memory_reading.h"

#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <vector>

#include "treadle/cli/probe.h"

namespace treadle::cli {
namespace {

constexpr size_t kSeed = 3;

bool underSeccomp() {
  std::ifstream status("/proc/self/status");
  for (std::string name; status >> name;)
    if (name == "Seccomp:") {
      int mode = 0;
      return status >> mode && mode != 0;
    }
  return false;
}

int ptraceScope() {
  int scope = 0;
  return std::ifstream("/proc/sys/kernel/yama/ptrace_scope") >> scope ? scope : 0;
}

std::string whyRefused(int error, const ReadableMemory& memory) {
  if (error == ENOSYS) return "the kernel or a seccomp profile is without process_vm_readv(2)";
  if (error == ESRCH) return "the process is not to be seen from here, though both say they share a PID namespace";
  if (error != EPERM) return std::string("process_vm_readv(2) fails: ") + std::strerror(error);
  if (memory.user != ::geteuid()) return "the other process belongs to another user";
  if (int scope = ptraceScope(); scope > 0)
    return "Yama forbids it: /proc/sys/kernel/yama/ptrace_scope is " + std::to_string(scope) +
           ", and 0 would allow it between processes of one user";
  if (underSeccomp()) return "a seccomp profile forbids process_vm_readv(2), or ptrace(2) is not allowed here";
  return "the kernel does not let this process look into the other one (ptrace(2))";
}

}  // namespace

uint64_t namespaceOf(const std::string& kind) {
  struct stat info{};
  return ::stat(("/proc/self/ns/" + kind).c_str(), &info) == 0 ? info.st_ino : 0;
}

ReadableMemory memoryToRead() {
  const Buffer& buffer = patternBuffer(kSeed);
  return {::getpid(), ::geteuid(), namespaceOf("pid"), reinterpret_cast<uint64_t>(buffer.data), buffer.sizeBytes};
}

std::string readMemory(const ReadableMemory& memory) {
  if (memory.pidNamespace != namespaceOf("pid"))
    return "the processes are in different PID namespaces; start them in one";
  std::vector<std::byte> bytes(kProbeBytes);
  iovec here{bytes.data(), bytes.size()};
  iovec there{reinterpret_cast<void*>(memory.address), bytes.size()};  // NOLINT: an address in another process
  ssize_t read = ::process_vm_readv(memory.pid, &here, 1, &there, 1, 0);
  if (read < 0) return whyRefused(errno, memory);
  bool whole = static_cast<size_t>(read) == bytes.size() && hasPattern(bytes, kSeed);
  return whole ? "" : "other bytes were read than are there";
}

}  // namespace treadle::cli

#include "treadle/core/io/process_memory.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>

#include "treadle/core/io/fd.h"

namespace treadle::io {
namespace {

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

bool ofAnotherUser(pid_t pid) {
  struct stat info{};
  return ::stat(("/proc/" + std::to_string(pid)).c_str(), &info) == 0 && info.st_uid != ::geteuid();
}

Status whyNot(int error, pid_t pid) {
  if (error == ESRCH) return errnoStatus(Code::kPeerLost, "there is no such process to be seen from here", error);
  if (error == EFAULT) return dataLoss("there is no memory at that address");
  if (error == ENOSYS) return failedPrecondition("the kernel or a seccomp profile is without process_vm_readv(2)");
  if (error != EPERM) return errnoStatus(Code::kFailedPrecondition, "process_vm_readv(2) fails", error);
  if (ofAnotherUser(pid)) return failedPrecondition("the other process belongs to another user");
  if (int scope = ptraceScope(); scope > 0)
    return failedPrecondition("Yama forbids it: /proc/sys/kernel/yama/ptrace_scope is " + std::to_string(scope) +
                              ", and 0 would allow it between processes of one user");
  if (underSeccomp())
    return failedPrecondition("a seccomp profile forbids process_vm_readv(2), or ptrace(2) is not allowed here");
  return failedPrecondition("the kernel does not let this process look into the other one (ptrace(2))");
}

}  // namespace

Result<ProcessMemory> ProcessMemory::ofPeer(int socket) {
  ucred peer{};
  socklen_t size = sizeof peer;
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0 || peer.pid <= 0)
    return failedPrecondition("the processes are in different PID namespaces; start them in one");
  return ProcessMemory(peer.pid);
}

// The kernel may stop in the middle, at a page that is not there or by a signal.
Status ProcessMemory::read(uint64_t address, MutableBytes to) const {
  while (!to.empty()) {
    iovec here{to.data(), to.size()};
    iovec there{reinterpret_cast<void*>(address), to.size()};  // NOLINT: an address in another process
    ssize_t count = ::process_vm_readv(pid_, &here, 1, &there, 1, 0);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return whyNot(errno, pid_);
    if (count == 0) return dataLoss("there is no memory at that address");
    address += static_cast<uint64_t>(count);
    to = to.subspan(static_cast<size_t>(count));
  }
  return {};
}

}  // namespace treadle::io

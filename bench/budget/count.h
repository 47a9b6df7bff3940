#pragma once
// Counts what this process asks of the allocator, of locks and of the system, on all of its threads: count.cc puts
// itself in front of the C library's functions. Link it into programs only, and not into those with sanitizers, which
// do the same. What the C library does within itself is not seen: the futex of a contended lock, say.

#include <array>
#include <cstddef>
#include <cstdint>

namespace bench {

enum class Counted : size_t {
  kAllocations,  // malloc and all that comes down to it, operator new too
  kLocks,        // mutexes that were taken
  kNotifies,     // condition variables: a wake-up where somebody waits, else nothing
  kWaits,        // likewise: each is a sleep as a rule
  kSendmsg,
  kRecvmsg,
  kRecv,
  kSend,
  kPoll,
  kEpollWait,
  kEpollCtl,
  kYield,
  kRead,
  kWrite,
  kPwrite,
  kMadvise,
  kMmap,
  kFallocate,
  kReadv,    // process_vm_readv
  kSyscall,  // syscall(2) by number: futexes of atomics, pidfds
  kCount
};
inline constexpr size_t kCounted = static_cast<size_t>(Counted::kCount);
inline constexpr size_t kFirstSystemCall = static_cast<size_t>(Counted::kSendmsg);
inline constexpr std::array<const char*, kCounted> kCountedNames = {
    "allocations", "locks",      "notifies",         "waits",  "sendmsg", "recvmsg", "recv",   "send",
    "poll",        "epoll_wait", "epoll_ctl",        "yield",  "read",    "write",   "pwrite", "madvise",
    "mmap",        "fallocate",  "process_vm_readv", "syscall"};

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kCounts = false;
#else
inline constexpr bool kCounts = true;
#endif

using Counts = std::array<uint64_t, kCounted>;

// Since the process began.
Counts counts();

}  // namespace bench

#include "bench/budget/count.h"

#include <dlfcn.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdarg>

namespace {

using bench::Counted;

constinit std::array<std::atomic<uint64_t>, bench::kCounted> counters{};

void count(Counted what) { counters[static_cast<size_t>(what)].fetch_add(1, std::memory_order_relaxed); }

// The C library's own function, which is asked for once; dlsym(3) itself allocates and locks, past this.
template <class F>
F nextOf(std::atomic<F>& kept, const char* name) {
  F function = kept.load(std::memory_order_acquire);
  if (function != nullptr) return function;
  function = reinterpret_cast<F>(::dlsym(RTLD_NEXT, name));
  kept.store(function, std::memory_order_release);
  return function;
}

}  // namespace

bench::Counts bench::counts() {
  Counts now;
  for (size_t i = 0; i < kCounted; ++i) now[i] = counters[i].load(std::memory_order_relaxed);
  return now;
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)

// A function of the C library's as it is, but counted.
#define TREADLE_COUNTED(what, result, name, parameters, arguments) \
  extern "C" result name parameters {                              \
    static constinit std::atomic<result(*) parameters> kept{};     \
    count(what);                                                   \
    return nextOf(kept, #name) arguments;                          \
  }

TREADLE_COUNTED(Counted::kLocks, int, pthread_mutex_lock, (pthread_mutex_t * mutex), (mutex))
TREADLE_COUNTED(Counted::kLocks, int, pthread_mutex_trylock, (pthread_mutex_t * mutex), (mutex))
TREADLE_COUNTED(Counted::kNotifies, int, pthread_cond_signal, (pthread_cond_t * condition), (condition))
TREADLE_COUNTED(Counted::kNotifies, int, pthread_cond_broadcast, (pthread_cond_t * condition), (condition))
TREADLE_COUNTED(Counted::kWaits, int, pthread_cond_wait, (pthread_cond_t * condition, pthread_mutex_t* mutex),
                (condition, mutex))
TREADLE_COUNTED(Counted::kWaits, int, pthread_cond_timedwait,
                (pthread_cond_t * condition, pthread_mutex_t* mutex, const timespec* until), (condition, mutex, until))
TREADLE_COUNTED(Counted::kWaits, int, pthread_cond_clockwait,
                (pthread_cond_t * condition, pthread_mutex_t* mutex, clockid_t clock, const timespec* until),
                (condition, mutex, clock, until))
TREADLE_COUNTED(Counted::kSendmsg, ssize_t, sendmsg, (int fd, const msghdr* message, int flags), (fd, message, flags))
TREADLE_COUNTED(Counted::kRecvmsg, ssize_t, recvmsg, (int fd, msghdr* message, int flags), (fd, message, flags))
TREADLE_COUNTED(Counted::kRecv, ssize_t, recv, (int fd, void* to, size_t size, int flags), (fd, to, size, flags))
TREADLE_COUNTED(Counted::kSend, ssize_t, send, (int fd, const void* from, size_t size, int flags),
                (fd, from, size, flags))
TREADLE_COUNTED(Counted::kPoll, int, poll, (pollfd * fds, nfds_t many, int milliseconds), (fds, many, milliseconds))
TREADLE_COUNTED(Counted::kEpollWait, int, epoll_wait, (int fd, epoll_event* events, int many, int milliseconds),
                (fd, events, many, milliseconds))
TREADLE_COUNTED(Counted::kRead, ssize_t, read, (int fd, void* to, size_t size), (fd, to, size))
TREADLE_COUNTED(Counted::kWrite, ssize_t, write, (int fd, const void* from, size_t size), (fd, from, size))
TREADLE_COUNTED(Counted::kPwrite, ssize_t, pwrite, (int fd, const void* from, size_t size, off_t at),
                (fd, from, size, at))
TREADLE_COUNTED(Counted::kEpollCtl, int, epoll_ctl, (int epoll, int what, int fd, epoll_event* event),
                (epoll, what, fd, event))
TREADLE_COUNTED(Counted::kYield, int, sched_yield, (), ())
TREADLE_COUNTED(Counted::kReadv, ssize_t, process_vm_readv,
                (pid_t from, const iovec* here, unsigned long parts, const iovec* there, unsigned long theirs,
                 unsigned long flags),
                (from, here, parts, there, theirs, flags))
TREADLE_COUNTED(Counted::kMadvise, int, madvise, (void* from, size_t size, int advice), (from, size, advice))
TREADLE_COUNTED(Counted::kMmap, void*, mmap, (void* at, size_t size, int protection, int flags, int fd, off_t offset),
                (at, size, protection, flags, fd, offset))
TREADLE_COUNTED(Counted::kFallocate, int, fallocate, (int fd, int mode, off_t offset, off_t size),
                (fd, mode, offset, size))
#undef TREADLE_COUNTED

extern "C" long syscall(long number, ...) {
  static constinit std::atomic<long (*)(long, ...)> kept{};
  count(Counted::kSyscall);
  std::va_list list;
  va_start(list, number);
  std::array<long, 6> given{};
  for (long& one : given) one = va_arg(list, long);
  va_end(list);
  return nextOf(kept, "syscall")(number, given[0], given[1], given[2], given[3], given[4], given[5]);
}

// ---- memory: glibc gives its own allocator these names for whoever stands in front of it

extern "C" {
void* __libc_malloc(size_t size);
void* __libc_calloc(size_t many, size_t size);
void* __libc_realloc(void* old, size_t size);
void* __libc_memalign(size_t alignment, size_t size);

void* malloc(size_t size) {
  count(Counted::kAllocations);
  return __libc_malloc(size);
}
void* calloc(size_t many, size_t size) {
  count(Counted::kAllocations);
  return __libc_calloc(many, size);
}
void* realloc(void* old, size_t size) {
  count(Counted::kAllocations);
  return __libc_realloc(old, size);
}
void* memalign(size_t alignment, size_t size) {
  count(Counted::kAllocations);
  return __libc_memalign(alignment, size);
}
void* aligned_alloc(size_t alignment, size_t size) { return memalign(alignment, size); }
int posix_memalign(void** result, size_t alignment, size_t size) {
  *result = memalign(alignment, size);
  return *result == nullptr ? ENOMEM : 0;
}
}

#endif

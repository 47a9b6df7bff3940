#include "treadle/core/io/shared_memory.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include <cerrno>
#include <cstring>

namespace treadle::io {
namespace {

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
constexpr int kReadOnly = F_SEAL_WRITE | F_SEAL_FUTURE_WRITE;
constexpr const char* kNoSpace = "no address space is left; start with `ulimit -v unlimited`";

// Kernels from 6.3 on want to be told that nobody will execute it; older ones do not know the flag.
Fd newMemfd() {
#ifdef MFD_NOEXEC_SEAL
  Fd fd(::memfd_create("treadle", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL));
  if (fd.valid() || errno != EINVAL) return fd;
#endif
  return Fd(::memfd_create("treadle", MFD_CLOEXEC | MFD_ALLOW_SEALING));
}

}  // namespace

Result<SharedMemory> SharedMemory::create(size_t sizeBytes) {
  rlimit limit{};  // a memfd is a file: beyond the limit sizing it would not fail but end the process (SIGXFSZ)
  if (::getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur < sizeBytes)
    return resourceExhausted(
        "the limit of a file's size is too low for shared memory; start with `ulimit -f unlimited`");
  Fd fd = newMemfd();
  if (!fd.valid())
    return errnoStatus(Code::kResourceExhausted,
                       "no shared memory can be made; have the container or its seccomp profile allow memfd_create(2)",
                       errno);
  if (::ftruncate(fd.get(), static_cast<off_t>(sizeBytes)) != 0 || ::fcntl(fd.get(), F_ADD_SEALS, kSeals) != 0)
    return errnoStatus(Code::kResourceExhausted,
                       "shared memory cannot be sized and sealed; have the container or its seccomp profile allow "
                       "ftruncate(2) and F_ADD_SEALS",
                       errno);
  return map(std::move(fd), sizeBytes);
}

Result<SharedMemory> SharedMemory::createPrivate(size_t sizeBytes) {
  void* data = ::mmap(nullptr, sizeBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (data == MAP_FAILED) return errnoStatus(Code::kResourceExhausted, kNoSpace, errno);
  (void)::madvise(data, sizeBytes, MADV_HUGEPAGE);
  return SharedMemory(Fd(), static_cast<std::byte*>(data), sizeBytes, {});
}

Result<SharedMemory> SharedMemory::adopt(Fd fd) {
  int seals = ::fcntl(fd.get(), F_GET_SEALS);
  if (seals < 0 || (seals & kSeals) != kSeals)
    return dataLoss("it shared memory that it could shrink: the descriptor is not sealed");
  if ((seals & kReadOnly) != 0) return dataLoss("it shared memory that nobody may write to");
  // A file of huge pages that its maker has pierced has no pages for whom comes late, who would die of SIGBUS.
  struct statfs kind{};
  if (::fstatfs(fd.get(), &kind) != 0)
    return errnoStatus(Code::kFailedPrecondition, "the system does not tell what kind of memory it shared", errno);
  if (kind.f_type != TMPFS_MAGIC) return dataLoss("it shared memory of huge pages");
  struct stat info{};
  if (::fstat(fd.get(), &info) != 0 || info.st_size <= 0) return dataLoss("it shared memory of no size");
  Result<SharedMemory> memory = map(std::move(fd), static_cast<size_t>(info.st_size));
  if (memory.ok()) memory->fd_.reset();  // the mapping stays, and peers cost no descriptors
  return memory;
}

Result<SharedMemory> SharedMemory::map(Fd fd, size_t sizeBytes) {
  struct stat info{};
  if (::fstat(fd.get(), &info) != 0) return errnoStatus(Code::kInternal, "shared memory cannot be asked about", errno);
  void* data = ::mmap(nullptr, sizeBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (data == MAP_FAILED) return errnoStatus(Code::kResourceExhausted, kNoSpace, errno);
  // Only the first touch is cheaper with huge pages, where the system has them for shared memory at all.
  (void)::madvise(data, sizeBytes, MADV_HUGEPAGE);
  return SharedMemory(std::move(fd), static_cast<std::byte*>(data), sizeBytes, {info.st_dev, info.st_ino});
}

SharedMemory::SharedMemory(SharedMemory&& other) noexcept
    : fd_(std::move(other.fd_)),
      data_(std::exchange(other.data_, nullptr)),
      sizeBytes_(std::exchange(other.sizeBytes_, 0)),
      identity_(other.identity_) {}

SharedMemory::~SharedMemory() {
  if (data_ != nullptr) ::munmap(data_, sizeBytes_);
}

void SharedMemory::writeFresh(size_t offsetBytes, Bytes bytes) const {
  while (shareable() && !bytes.empty()) {
    ssize_t written = ::pwrite(fd_.get(), bytes.data(), bytes.size(), static_cast<off_t>(offsetBytes));
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) break;
    offsetBytes += static_cast<size_t>(written);
    bytes = bytes.subspan(static_cast<size_t>(written));
  }
  if (!bytes.empty()) std::memcpy(data_ + offsetBytes, bytes.data(), bytes.size());
}

bool SharedMemory::populate(size_t offsetBytes, size_t sizeBytes) const {
#ifdef MADV_POPULATE_WRITE  // Linux 5.14
  return ::madvise(data_ + offsetBytes, sizeBytes, MADV_POPULATE_WRITE) == 0;
#else
  return false;
#endif
}

void SharedMemory::discard(size_t offsetBytes, size_t sizeBytes) const {
  if (shareable()) {
    (void)::fallocate(fd_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offsetBytes),
                      static_cast<off_t>(sizeBytes));
  } else {
    (void)::madvise(data_ + offsetBytes, sizeBytes, MADV_DONTNEED);
  }
}

}  // namespace treadle::io

#include "treadle/core/io/shared_memory.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <vector>

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

void punch(const Fd& fd, SharedMemory::Range range) {
  (void)::fallocate(fd.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(range.begin),
                    static_cast<off_t>(range.size));
}

// Note [Claims]
// Locks of the kernel (fcntl(2), "open file description locks") tell which processes may use which bytes. The maker
// locks the byte behind the end. Each adopter locks all of the memory for reading, which others may do too, and unlocks
// what it uses no longer. So a range that can be locked for writing belongs to nobody. A lock belongs to an open file
// description and ends with the last descriptor or mapping of it. The maker's lock therefore lasts until the children
// that it forked are gone too, and the lock of an adopter that is killed ends by itself. An adopter opens a description
// of its own: a mapping of the maker's would keep the maker's lock.
flock lockOf(short type, SharedMemory::Range range) {
  flock lock{};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  lock.l_start = static_cast<off_t>(range.begin);
  lock.l_len = static_cast<off_t>(range.size);
  return lock;
}

bool setLock(const Fd& fd, short type, SharedMemory::Range range) {
  flock lock = lockOf(type, range);
  return ::fcntl(fd.get(), F_OFD_SETLK, &lock) == 0;
}

SharedMemory::Range placeOfMakersLock(size_t sizeBytes) { return {sizeBytes, 1}; }

// True also when the system does not tell.
bool makerLives(const Fd& fd, size_t sizeBytes) {
  flock lock = lockOf(F_WRLCK, placeOfMakersLock(sizeBytes));
  return ::fcntl(fd.get(), F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}

bool isSameFile(const Fd& a, const Fd& b) {
  struct stat one{}, other{};
  if (::fstat(a.get(), &one) != 0 || ::fstat(b.get(), &other) != 0) return false;
  return one.st_dev == other.st_dev && one.st_ino == other.st_ino && one.st_size == other.st_size;
}

// Not valid when the system has no such locks, or the maker has not locked its place. Does not wait for a maker that
// holds a lease on the file (O_NONBLOCK).
Fd openAndClaim(const Fd& memfd, size_t sizeBytes) {
  Fd fd(::open(("/proc/self/fd/" + std::to_string(memfd.get())).c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK));
  if (!fd.valid() || !isSameFile(fd, memfd)) return {};
  if (!setLock(fd, F_RDLCK, {0, sizeBytes}) || !makerLives(fd, sizeBytes)) return {};
  return fd;
}

// The whole pages outside of `kept`.
std::vector<SharedMemory::Range> gapsBetween(std::span<const SharedMemory::Range> kept, size_t sizeBytes) {
  const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  std::vector<SharedMemory::Range> gaps;
  size_t at = 0;
  for (const SharedMemory::Range& range : kept) {
    const size_t begin = range.begin / page * page;
    if (begin > at) gaps.push_back({at, begin - at});
    at = std::max(at, (range.begin + range.size + page - 1) / page * page);
  }
  if (at < sizeBytes) gaps.push_back({at, sizeBytes - at});
  return gaps;
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
  (void)setLock(fd, F_WRLCK, placeOfMakersLock(sizeBytes));  // without it peers reclaim nothing
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
  const auto sizeBytes = static_cast<size_t>(info.st_size);
  Fd claimed = openAndClaim(fd, sizeBytes);
  const bool reclaimable = claimed.valid();
  Result<SharedMemory> memory = map(reclaimable ? std::move(claimed) : std::move(fd), sizeBytes);
  if (!memory.ok()) return memory;
  memory->adopted_ = true;
  if (!reclaimable) memory->fd_.reset();  // the mapping stays
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
      adopted_(other.adopted_),
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
    punch(fd_, {offsetBytes, sizeBytes});
  } else {
    (void)::madvise(data_ + offsetBytes, sizeBytes, MADV_DONTNEED);
  }
}

// Unlocks first and looks then: of those that let go of a range, the last one finds it free.
void SharedMemory::reclaim(std::span<const Range> kept) const {
  if (!reclaimable()) return;
  const std::vector<Range> gaps = gapsBetween(kept, sizeBytes_);
  for (const Range& gap : gaps)
    if (!setLock(fd_, F_UNLCK, gap)) return;
  if (makerLives(fd_, sizeBytes_)) return;
  for (const Range& gap : gaps) punchUnclaimed(gap);
}

void SharedMemory::punchUnclaimed(Range gap) const {
  std::vector<Range> left = {gap};
  while (!left.empty()) {
    const Range range = left.back();
    left.pop_back();
    flock other = lockOf(F_WRLCK, range);
    if (::fcntl(fd_.get(), F_OFD_GETLK, &other) != 0) return;
    if (other.l_type == F_UNLCK) {
      punch(fd_, range);
      continue;
    }
    const size_t end = range.begin + range.size;
    const size_t otherBegin = std::max(range.begin, static_cast<size_t>(other.l_start));
    const size_t otherEnd = other.l_len == 0 ? end : std::min(end, static_cast<size_t>(other.l_start + other.l_len));
    if (otherBegin > range.begin) left.push_back({range.begin, otherBegin - range.begin});
    if (otherEnd < end) left.push_back({otherEnd, end - otherEnd});
  }
}

}  // namespace treadle::io

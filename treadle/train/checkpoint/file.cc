#include "treadle/train/checkpoint/file.h"

#include <fcntl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

namespace treadle::safetensors {
namespace {

// The kernel moves at most this much per call anyway (2 GiB less a page).
constexpr size_t kLargestTransfer = size_t{1} << 30;

// A failed system call by what its caller can do about it; `what` is "cannot open it for writing" and the
// like.
Status systemError(const std::string& what) {
  int error = errno;
  std::string message = what + ": " + std::generic_category().message(error);
  switch (error) {
    case ENOENT: return notFound(std::move(message));
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
    case EMFILE:
    case ENFILE: return resourceExhausted(std::move(message));
    case EIO: return dataLoss(std::move(message));
    default: return failedPrecondition(std::move(message));
  }
}

std::string folderOf(const std::string& path) {
  size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

// ".model.safetensors.3f9c0a1b2d4e5f60": hidden, beside the target because rename works within one file
// system only.
std::string temporaryName(const std::string& path) {
  uint64_t random = 0;
  // Random rather than counted: processes on several machines may share the folder. O_EXCL catches what is
  // left.
  if (getrandom(&random, sizeof random, 0) != sizeof random) random = static_cast<uint64_t>(getpid());
  constexpr char kDigits[] = "0123456789abcdef";
  std::string suffix;
  for (int i = 0; i < 16; ++i) suffix.push_back(kDigits[random >> (4 * i) & 15]);
  // Cut, so that a name as long as the file system allows stays writable.
  return folderOf(path) + "/." + path.substr(path.rfind('/') + 1).substr(0, 200) + "." + suffix;
}

// A new file gets the usual permissions, one that replaces another keeps the other's.
Status keepPermissions(int fd, const std::string& path) {
  // A target that does not exist yet is the usual case, and no error.
  struct stat old{};
  if (stat(path.c_str(), &old) != 0) return {};
  if (S_ISDIR(old.st_mode)) return failedPrecondition("a folder has that name");
  if (!S_ISREG(old.st_mode)) return failedPrecondition("a device, pipe or socket has that name");
  if (fchmod(fd, old.st_mode & 07777) != 0)
    return systemError("cannot give it the permissions of the file it replaces");
  return {};
}

// Without this the rename itself could be lost when the machine stops. Some file systems cannot sync a folder
// (EINVAL): they give no such guarantee, and the file is there all the same.
Status syncFolder(const std::string& folder) {
  io::Fd fd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd.valid() || fsync(fd.get()) == 0 || errno == EINVAL) return {};
  return systemError("cannot make its name durable");
}

}  // namespace

NewFile::NewFile(std::string path, std::string temporary, io::Fd fd)
    : path_(std::move(path)), temporary_(std::move(temporary)), fd_(std::move(fd)) {}

NewFile::NewFile(NewFile&& other) noexcept
    : path_(std::move(other.path_)), temporary_(std::exchange(other.temporary_, {})), fd_(std::move(other.fd_)) {}

NewFile::~NewFile() {
  if (!temporary_.empty()) unlink(temporary_.c_str());
}

Result<NewFile> NewFile::create(const std::string& path) {
  if (path.empty() || path.back() == '/') return invalidArgument("it names no file");
  std::string temporary = temporaryName(path);
  // O_EXCL: never through a link that somebody put there.
  io::Fd fd(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  if (!fd.valid()) return systemError("cannot create a file in " + folderOf(path));
  // The object takes the file over before anything can fail, so that the temporary file goes with it.
  int number = fd.get();
  NewFile file(path, std::move(temporary), std::move(fd));
  TREADLE_RETURN_IF_ERROR(keepPermissions(number, path));
  return file;
}

Status NewFile::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    ssize_t written = ::write(fd_.get(), bytes.data(), std::min(bytes.size(), kLargestTransfer));
    // A signal of the program must not cost a checkpoint.
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return systemError("cannot write to it");
    bytes = bytes.subspan(static_cast<size_t>(written));
  }
  return {};
}

// Bytes first, then the name: after the rename a crash must find the whole file. The order of Pillai et al.
// 2014 ("All File Systems Are Not Created Equal"), whose bugs are those of programs that leave a step out.
Status NewFile::commit() {
  if (fsync(fd_.get()) != 0) return systemError("cannot make its bytes durable");
  if (rename(temporary_.c_str(), path_.c_str()) != 0) return systemError("cannot put it in place");
  temporary_.clear();
  return syncFolder(folderOf(path_));
}

Result<OldFile> OldFile::open(const std::string& path) {
  // O_NONBLOCK: opening a FIFO would otherwise wait for a writer for ever.
  io::Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd.valid()) return systemError("cannot open it");
  struct stat status{};
  if (fstat(fd.get(), &status) != 0) return systemError("cannot look at it");
  if (!S_ISREG(status.st_mode)) return failedPrecondition("it is not a regular file");
  return OldFile(std::move(fd), static_cast<uint64_t>(status.st_size));
}

// pread keeps no position, so that readers do not disturb each other.
Status OldFile::read(uint64_t offset, std::span<std::byte> into) const {
  while (!into.empty()) {
    ssize_t got = pread(fd_.get(), into.data(), std::min(into.size(), kLargestTransfer), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return systemError("cannot read it");
    // The header was checked against the size at opening; another program has cut the file since.
    if (got == 0) return dataLoss("it became shorter while it was read");
    offset += static_cast<uint64_t>(got);
    into = into.subspan(static_cast<size_t>(got));
  }
  return {};
}

}  // namespace treadle::safetensors

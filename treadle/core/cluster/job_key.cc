#include "treadle/core/cluster/job_key.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>

#include "treadle/core/base/environment.h"
#include "treadle/core/base/log.h"
#include "treadle/core/cluster/launch_variables.h"
#include "treadle/core/io/socket.h"

namespace treadle::cluster {
namespace {

// Of a pipe whose other end has written nothing yet.
constexpr Duration kPatience = std::chrono::seconds(10);

// A pipe's bytes are there once; of a file all who read have all.
ssize_t readAt(int fd, char* to, size_t size, size_t offset) {
  ssize_t got = ::pread(fd, to, size, static_cast<off_t>(offset));
  return got < 0 && errno == ESPIPE ? ::read(fd, to, size) : got;
}

// Editors and `echo` end a line.
std::string withoutLineEnd(std::string key) {
  while (!key.empty() && (key.back() == '\n' || key.back() == '\r')) key.pop_back();
  return key;
}

Result<std::string> keyFrom(int fd, const std::string& what) {
  const TimePoint deadline = deadlineAfter(kPatience);
  std::string key(kMaxJobKeyLength + 2, '\0');
  size_t filled = 0;
  while (filled < key.size()) {
    if (!io::waitFor(fd, POLLIN, deadline)) return invalidArgument(what + " gave nothing for 10 s");
    ssize_t got = readAt(fd, key.data() + filled, key.size() - filled, filled);
    if (got < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (got < 0) return io::errnoStatus(Code::kInvalidArgument, what + " cannot be read", errno);
    if (got == 0) break;
    filled += static_cast<size_t>(got);
  }
  key.resize(filled);
  key = withoutLineEnd(std::move(key));
  if (key.empty()) return invalidArgument(what + " holds no key");
  return key;
}

Result<std::string> keyOfDescriptor(const std::string& text) {
  const char* end = text.data() + text.size();
  int fd = -1;
  uint64_t inode = 0;
  auto [at, error] = std::from_chars(text.data(), end, fd);
  const bool named = error == std::errc() && at != end && *at == ':';
  if (named) at = std::from_chars(at + 1, end, inode).ptr;
  if (error != std::errc() || at != end || fd < 0)
    return invalidArgument(std::string(kJobKeyDescriptor) + " is " + quoted(text) + ", not a descriptor's number");
  struct stat info{};
  if (::fstat(fd, &info) != 0 || (named && info.st_ino != inode))
    return invalidArgument(
        std::string(kJobKeyDescriptor) +
        " names a descriptor that this process does not have: whatever started it in between has to hand it on "
        "(of Python's subprocess: pass_fds or close_fds=False)");
  // What this worker starts is not this worker.
  (void)::fcntl(fd, F_SETFD, FD_CLOEXEC);
  return keyFrom(fd, std::string(kJobKeyDescriptor) + "'s descriptor");
}

}  // namespace

Result<std::string> readJobKey() {
  if (std::optional<std::string> text = base::environment(kJobKeyDescriptor)) return keyOfDescriptor(*text);
  if (std::optional<std::string> path = base::environment(kJobKeyFile)) {
    io::Fd file(::open(path->c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));  // it may be a pipe that nobody writes to
    const std::string what = std::string(kJobKeyFile) + ", " + quoted(*path) + ",";
    if (!file.valid()) return io::errnoStatus(Code::kInvalidArgument, what + " cannot be opened", errno);
    struct stat info{};
    if (::fstat(file.get(), &info) == 0 && (info.st_mode & S_IROTH) != 0)
      logWarn("", what + " can be read by every user of this host, who could join the job: `chmod 600` it");
    return keyFrom(file.get(), what);
  }
  return withoutLineEnd(base::environment(kJobKey).value_or(""));
}

}  // namespace treadle::cluster

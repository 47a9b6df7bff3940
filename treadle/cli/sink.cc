#include "treadle/cli/sink.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <cerrno>

namespace treadle::cli {

Sink::Sink(io::Reactor& reactor, int fd, UniqueFunction<void()> onRoom)
    : reactor_(reactor), given_(fd), onRoom_(std::move(onRoom)) {
  struct stat info{};
  if (::fstat(fd, &info) != 0) return;
  socket_ = S_ISSOCK(info.st_mode);
  if (socket_) own_ = io::Fd(::fcntl(fd, F_DUPFD_CLOEXEC, 3));
  if (!S_ISFIFO(info.st_mode) && ::isatty(fd) != 1) return;
  // May be refused (a terminal of another user, after su): then writes wait, as everybody's do.
  std::string path = "/proc/self/fd/" + std::to_string(fd);
  own_ = io::Fd(::open(path.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY));
}

Sink::~Sink() { waitForRoom(false); }

void Sink::append(std::string_view text) {
  if (error_ == 0) queue_ += text;
}

// A socket cannot be opened a second time; there the flag goes with each call.
ssize_t Sink::writeSome() {
  const char* from = queue_.data() + written_;
  size_t size = queue_.size() - written_;
  if (socket_ && own_.valid()) return ::send(own_.get(), from, size, MSG_DONTWAIT | MSG_NOSIGNAL);
  return ::write(own_.valid() ? own_.get() : given_, from, size);
}

void Sink::flush() {
  while (!empty()) {
    ssize_t size = writeSome();
    if (size >= 0) {
      written_ += static_cast<size_t>(size);
    } else if (errno == EAGAIN) {
      waitForRoom(own_.valid());
      return;
    } else if (errno != EINTR) {
      error_ = errno;  // nobody reads any more, the disk is full: what the owner makes of it is the owner's choice
      break;
    }
  }
  queue_.clear();
  written_ = 0;
  waitForRoom(false);
  onRoom_();
}

void Sink::waitForRoom(bool wanted) {
  if (wanted == waiting_) return;
  waiting_ = wanted;
  if (!wanted) return reactor_.remove(own_.get());
  auto handler = std::make_shared<OnEvents>([this] { flush(); });
  // Without the reactor's help the next flush has to do.
  waiting_ = reactor_.add(own_.get(), EPOLLOUT, std::move(handler)).ok();
}

}  // namespace treadle::cli

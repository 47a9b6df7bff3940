#include "treadle/core/io/process_handle.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include "treadle/core/base/check.h"

namespace treadle::io {

ProcessHandle ProcessHandle::ofPeer(int socket) {
  ucred peer{};
  socklen_t size = sizeof peer;
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0 || peer.pid <= 0) return {};
  return ProcessHandle(Fd(static_cast<int>(::syscall(SYS_pidfd_open, peer.pid, 0))));
}

bool ProcessHandle::ended() const {
  TREADLE_CHECK(valid(), "only a process that is known can be asked about");
  pollfd waited{fd_.get(), POLLIN, 0};
  return ::poll(&waited, 1, 0) > 0;
}

}  // namespace treadle::io

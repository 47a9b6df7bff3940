#include "treadle/core/io/late_sending.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <string_view>

#include "treadle/core/io/socket.h"

namespace treadle::io {

void sendLate(int fd, int unsentBytes, int bufferBytes) {
  if (isUnixSocket(fd)) return;
  constexpr std::string_view kCubic = "cubic";
  setBufferSizes(fd, bufferBytes);
  (void)::setsockopt(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &unsentBytes, sizeof unsentBytes);
  (void)::setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, kCubic.data(), kCubic.size());
}

}  // namespace treadle::io

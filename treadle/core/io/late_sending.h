#pragma once
// Sockets of a sender that decides as late as possible what goes next, because several connections share its link.
// Free function, any thread.

namespace treadle::io {

// A TCP socket takes more only while less than `unsentBytes` of what it has was not sent yet (TCP_NOTSENT_LOWAT,
// tcp(7)), and keeps at most about `bufferBytes` in each direction. Its rate is found by CUBIC (RFC 9438) where this
// process may use it: several connections of a host then share a link without the phases in which BBR probes. Other
// sockets are left alone.
void sendLate(int fd, int unsentBytes, int bufferBytes);

}  // namespace treadle::io

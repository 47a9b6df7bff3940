#pragma once
// Stream sockets: to listen, to connect within a deadline, to accept, to know who is at the other end. All sockets
// are close-on-exec and non-blocking; waiting is done by `waitFor` or by the reactor. Free functions, any thread.

#include <poll.h>

#include <vector>

#include "treadle/core/base/buffer.h"
#include "treadle/core/base/clock.h"
#include "treadle/core/io/address.h"
#include "treadle/core/io/fd.h"

namespace treadle::io {

// FailedPrecondition naming the address when it is in use.
Result<Fd> listenOn(const Address& address);
// At the first that is free; InvalidArgument for none at all.
Result<Fd> listenOnFirst(const std::vector<Address>& addresses);

// One attempt; TCP sockets get TCP_NODELAY, as we write whole frames.
// PeerLost with no worker's name when nobody listens there; DeadlineExceeded.
Result<Fd> connectTo(const Address& address, TimePoint deadline);

// The next waiting connection; an invalid Fd when there is none now.
Result<Fd> acceptFrom(int listener);

// Whether the process at the other end of a UNIX socket belongs to the user of this one (SO_PEERCRED). False where that
// cannot be known: for a user without a number in this user namespace.
bool peerIsSameUser(int fd);

bool isUnixSocket(int fd);
// Whether the other end is on this host for sure: a UNIX socket or a loopback address.
bool isLocal(int fd);
// What the system keeps of bytes under way, in each direction (SO_SNDBUF, SO_RCVBUF); as far as it allows.
void setBufferSizes(int fd, int sizeBytes);

// The kernel asks the other end of a TCP connection now and then whether it is still there, while nothing else is under
// way to it, and breaks the connection (ETIMEDOUT) when it has had no answer for about `limit`, in whole seconds
// (SO_KEEPALIVE, man 7 tcp). A stopped process answers, by its kernel. Other sockets are left alone.
void probeWhileIdle(int fd, Duration limit);

// Reads and writes wait in the kernel from now on, at most `look` at a time: then they have done a part, or fail with
// EAGAIN.
Status makeBlocking(int fd, Duration look);

// Waits until `fd` has one of the poll(2) `events` (or an error): false when the deadline passed or an Interruption
// came first. A negative `fd` has none.
bool waitFor(int fd, short events, TimePoint deadline);

// Milliseconds from now to the deadline for poll(2) and epoll_wait(2), rounded up; -1 for kNever.
int millisecondsUntil(TimePoint deadline);

// Write all, or read exactly as much as there is room, on a non-blocking socket. PeerLost at the end of the stream.
Status writeAll(int fd, Bytes bytes, TimePoint deadline);
Status readAll(int fd, MutableBytes bytes, TimePoint deadline);

}  // namespace treadle::io

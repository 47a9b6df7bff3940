#pragma once
// Where rank 0, or the keeper of an open job, lets workers come: at a port and, beside a loopback port, at a UNIX
// socket (link::Credentials::meetingSocket). Whatever other users do at the port, workers of this user get in at the
// socket. Those that cannot use it come to the port. Open for as long as the acceptors live.

#include <functional>
#include <memory>
#include <vector>

#include "treadle/core/link/handshake.h"

namespace treadle::cluster {

using Acceptors = std::vector<std::unique_ptr<link::Acceptor>>;

// The first acceptor is at the first of `addresses` that is free. `makeHost` is called for each acceptor.
// FailedPrecondition naming the last address when none is free. A socket that cannot be had is a line in the log.
Result<Acceptors> acceptAtMeeting(io::Reactor& reactor, const std::vector<io::Address>& addresses,
                                  const link::Credentials& credentials,
                                  const std::function<link::Acceptor::Host()>& makeHost);

}  // namespace treadle::cluster

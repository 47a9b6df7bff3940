#pragma once
// Which addresses a worker may use, and what its links prove and encrypt themselves with. UNIX sockets: the kernel says
// whose they are. Loopback TCP: the job key, or one that rank 0 hands out over a UNIX socket. Anything else: TLS with
// the job key or certificates, or clear text for who says `allowPlaintext`. Free functions, for the thread that joins.

#include "treadle/core/link/handshake.h"
#include "treadle/core/worker/options.h"

namespace treadle {

// FailedPrecondition, with what to do about it, for an address beyond the loopback where strangers could come in.
// `what` is the address, for the message.
Status mayUse(const io::Address& address, const JoinOptions& options, const Launch& launch, const std::string& what);

// Whether workers that meet there can do without a key: certificates prove who they are.
bool needsNoKey(const io::Address& master, const JoinOptions& options);

// Of a worker that knows `jobKey`, which may be empty with certificates. InvalidArgument for files that cannot be used.
Result<link::Credentials> credentialsOf(const WorkerInfo& self, std::string jobKey, const JoinOptions& options);

}  // namespace treadle

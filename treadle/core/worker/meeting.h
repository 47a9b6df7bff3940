#pragma once
// Where the workers of a job meet, and with which key: from what the launcher and the options say. Free functions, for
// the thread that joins.

#include "treadle/core/cluster/rendezvous.h"
#include "treadle/core/worker/options.h"

namespace treadle {

// Where rank 0, or the keeper of an open job, listens: at the first of these that is free. FailedPrecondition when
// strangers could come in there, InvalidArgument for what is no address.
Result<std::vector<io::Address>> listenAddresses(const Launch& launch, const JoinOptions& options);

// Where peers reach a worker that has no `listenAddress`, with port 0: the loopback, or the address by which this host
// reaches the master, if that is beyond it.
Result<io::Address> reachableAddress(const Launch& launch, const JoinOptions& options);

// Where the others look for it; both must outlive what is returned. A meeting file is read again for every try; a name
// is resolved once.
Result<cluster::MasterAddresses> whereToMeet(const Launch& launch, const JoinOptions& options);

// What `self` comes there with. The key is the launcher's; where nobody was given one, and no certificates take its
// place, the one that rank 0 makes up with `makeKey` and gives to its own user's processes on this host, at which the
// others, without `makeKey`, ask for it until the deadline.
using MakeKey = UniqueFunction<Result<std::string>()>;
Result<link::Credentials> credentialsAtMeeting(const WorkerInfo& self, const Launch& launch, const JoinOptions& options,
                                               TimePoint deadline, MakeKey makeKey = {});

}  // namespace treadle

#pragma once
// The channels that a worker may use to its peers where they work, and the channels that it uses. Plain values.

#include <cstdint>
#include <string>

#include "treadle/core/base/status.h"

namespace treadle {

struct Channels {
  bool unixSockets = true;   // "unix": to peers on this host
  bool tcp = true;           // "tcp"
  bool lanes = true;         // "lanes": extra sockets for large tensors when no memory is shared
  bool sharedMemory = true;  // "shm": tensors to peers on this host; needs "unix"
  bool crossMemory = true;   // "cma": arguments of blocking calls on this host without shared memory; needs "unix"

  // Parses a text like "tcp,lanes": channels that it does not name are off. InvalidArgument for an unknown name, and
  // when neither "unix" nor "tcp" is named.
  static Result<Channels> parse(std::string_view text);
};

// One channel from this worker to a peer.
struct ChannelUse {
  bool inUse = false;
  std::string why = {};    // why it is not in use: one sentence, with a remedy where there is one
  uint64_t sentBytes = 0;  // bytes of tensors and other large values sent to the peer over it
};

// The current state of each channel. Lanes are dialed at their first use. Memory is shared once the peer has confirmed
// it, which happens before the answer to any call.
struct PeerChannels {
  ChannelUse unixSockets, tcp, lanes, sharedMemory, crossMemory;
};

}  // namespace treadle

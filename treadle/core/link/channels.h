#pragma once
// Which ways a worker may use to its peers, of those that work between them; and which of them it uses. Plain values.

#include <cstdint>
#include <string>

#include "treadle/core/base/status.h"

namespace treadle {

struct Channels {
  bool unixSockets = true;   // "unix": to peers on this host
  bool tcp = true;           // "tcp"
  bool lanes = true;         // "lanes": sockets of their own for large tensors that no memory is shared for
  bool sharedMemory = true;  // "shm": tensors to peers on this host; needs "unix"
  bool crossMemory = true;   // "cma": arguments of blocking calls there, when no memory is shared; needs "unix"

  // Of a text like "tcp,lanes": what is not named is not used. InvalidArgument for another name, or for neither "unix"
  // nor "tcp".
  static Result<Channels> parse(std::string_view text);
};

// One way from this worker to a peer.
struct ChannelUse {
  bool inUse = false;
  std::string why = {};    // it is not: one sentence, with what to do about it where there is something
  uint64_t sentBytes = 0;  // of tensors and other large values, that went this way to the peer
};

// What is known of each at the moment: lanes are dialed when they are needed first, and memory is shared once the peer
// has said that it takes it, which comes before the answer to any call.
struct PeerChannels {
  ChannelUse unixSockets, tcp, lanes, sharedMemory, crossMemory;
};

}  // namespace treadle

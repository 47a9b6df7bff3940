#pragma once
// Which ways a worker may use to its peers, of those that work between them. Plain value.

#include <string>

#include "treadle/core/base/status.h"

namespace treadle {

struct Channels {
  bool unixSockets = true;   // "unix": to peers on this host
  bool tcp = true;           // "tcp"
  bool lanes = true;         // "lanes": sockets of their own for large tensors that no memory is shared for
  bool sharedMemory = true;  // "shm": tensors to peers on this host; needs "unix"

  // Of a text like "tcp,lanes": what is not named is not used. InvalidArgument for another name, or for neither "unix"
  // nor "tcp".
  static Result<Channels> parse(std::string_view text);
};

}  // namespace treadle

#pragma once
// Two ends of a UNIX stream socket, neither of which blocks.

#include <sys/socket.h>

#include "tests/fuzz/fuzzer.h"
#include "treadle/core/io/fd.h"

namespace treadle::fuzz {

inline std::pair<io::Fd, io::Fd> socketPair() {
  int ends[2];
  promise(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) == 0, "there are descriptors");
  return {io::Fd(ends[0]), io::Fd(ends[1])};
}

}  // namespace treadle::fuzz

#pragma once
// A stream on a socket that a test goes on holding.

#include <unistd.h>

#include "treadle/core/io/stream.h"

namespace treadle::test {

inline io::Stream streamOn(int fd) { return io::Fd(::dup(fd)); }

}  // namespace treadle::test

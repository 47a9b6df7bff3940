#pragma once
// A TCP port of this host that nobody listens on now. From below the range that the kernel hands out by itself, so that
// no other socket of the test takes it meanwhile.

#include <unistd.h>

#include <random>

#include "treadle/core/io/socket.h"

namespace treadle::test {

inline uint16_t freePort() {
  static std::mt19937 random(static_cast<unsigned>(::getpid()) * 2654435761U);
  for (;;) {
    auto port = static_cast<uint16_t>(12'000 + random() % 18'000);
    if (io::listenOn(*io::Address::tcp("127.0.0.1", port)).ok()) return port;
  }
}

}  // namespace treadle::test

#pragma once
// TCP ports of this host that no other test takes. Each process claims a range of ports by a name in the abstract
// namespace (unix(7)), which the kernel frees when the process ends: two tests that run side by side never choose the
// same port, even where neither listens yet. The ranges lie below the ports that the kernel hands out by itself.
// tests/support/free_port.py claims ranges by the same names.

#include <unistd.h>

#include <stdexcept>
#include <string>

#include "treadle/core/io/socket.h"

namespace treadle::test {

class PortRange {
 public:
  static constexpr int kFirstPort = 12'000;
  static constexpr int kPorts = 180;  // of a range
  static constexpr int kRanges = 100;

  PortRange() {
    // By process id: what is left of a test that was killed does not meet the next one.
    for (int tries = 0; tries < kRanges && !claim_.valid(); ++tries) {
      range_ = (::getpid() + tries) % kRanges;
      auto claim = io::listenOn(*io::Address::parse("unix:treadle-test-ports-" + std::to_string(range_)));
      if (claim.ok()) claim_ = std::move(*claim);
    }
    if (!claim_.valid()) throw std::runtime_error("other processes have claimed all ranges of test ports");
  }

  // A port that nobody listens on, and that the last kPorts - 1 calls did not return.
  uint16_t next() {
    for (int tries = 0; tries < kPorts; ++tries) {
      const auto port = static_cast<uint16_t>(kFirstPort + range_ * kPorts + next_++ % kPorts);
      if (io::listenOn(*io::Address::tcp("127.0.0.1", port)).ok()) return port;
    }
    throw std::runtime_error("something listens on each port of this test's range");
  }

 private:
  int range_ = 0;
  int next_ = ::getpid() / kRanges;
  io::Fd claim_;
};

inline uint16_t freePort() {
  static PortRange range;
  return range.next();
}

}  // namespace treadle::test

#pragma once
// Bounded waits for what comes over a socket or a pipe, and for the end of a process (its pidfd).

#include <poll.h>
#include <unistd.h>

#include <array>

#include "tests/support/gate.h"
#include "treadle/core/io/socket.h"

namespace treadle::test {

// Waits until `fd` can be read. `what` names the event in the failure: "a connection".
inline ::testing::AssertionResult readable(int fd, const std::string& what) {
  return io::waitFor(fd, POLLIN, patience()) ? ::testing::AssertionSuccess() : waitedInVain(what + " did not come");
}

// What comes up to the end of the stream; or up to where the test's patience ends, which fails the test.
inline std::string readToEnd(int fd) {
  std::string text;
  for (std::array<char, 4096> bytes;;) {
    const auto more = readable(fd, "the end of what is read");
    EXPECT_TRUE(more) << text;
    const ssize_t size = more ? ::read(fd, bytes.data(), bytes.size()) : 0;
    if (size <= 0) return text;
    text.append(bytes.data(), static_cast<size_t>(size));
  }
}

// The next line, without its end. It is followed by "(nothing more)" when its end does not come.
inline std::string readLine(int fd) {
  std::string line;
  for (char byte = 0;;) {
    const auto more = readable(fd, "the end of a line");
    EXPECT_TRUE(more) << line;
    if (!more || ::read(fd, &byte, 1) != 1) return line + "(nothing more)";
    if (byte == '\n') return line;
    line += byte;
  }
}

}  // namespace treadle::test

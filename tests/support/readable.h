#pragma once
// Bounded waits for what comes over a socket or a pipe, and for the end of a process (its pidfd).

#include <poll.h>
#include <unistd.h>

#include <array>

#include "tests/support/gate.h"
#include "treadle/core/io/socket.h"

namespace treadle::test {

// Waits until `fd` can be read. `what` names the event in the failure: "a connection".
inline ::testing::AssertionResult readable(int fd, const std::string& what, TimePoint deadline = patience()) {
  return io::waitFor(fd, POLLIN, deadline) ? ::testing::AssertionSuccess() : waitedInVain(what + " did not come");
}

// Reads up to the end of the stream. If that does not come in time, the test fails, and this returns the bytes so far.
inline std::string readToEnd(int fd) {
  const TimePoint deadline = patience();
  std::string text;
  for (std::array<char, 4096> bytes;;) {
    const auto more = readable(fd, "the end of the stream", deadline);
    EXPECT_TRUE(more) << text;
    const ssize_t size = more ? ::read(fd, bytes.data(), bytes.size()) : 0;
    if (size <= 0) return text;
    text.append(bytes.data(), static_cast<size_t>(size));
  }
}

// Returns the next line, without its end. "(nothing more)" follows the line when its end does not come.
inline std::string readLine(int fd) {
  const TimePoint deadline = patience();
  std::string line;
  for (char byte = 0;;) {
    const auto more = readable(fd, "the end of a line", deadline);
    EXPECT_TRUE(more) << line;
    if (!more || ::read(fd, &byte, 1) != 1) return line + "(nothing more)";
    if (byte == '\n') return line;
    line += byte;
  }
}

}  // namespace treadle::test

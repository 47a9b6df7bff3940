// A worker of an open job in a process of its own, which the test kills or stops: open_peer_program NAME PORT
// HEARTBEAT_TIMEOUT_MS. Serves until the job is over or it has lost it; then it says why, and ends.

#include <cstdio>
#include <cstdlib>
#include <string>

#include "tests/core/worker/peer_functions.h"

int main(int, char** arguments) {
  treadle::JoinOptions options;
  options.name = arguments[1];
  options.functions = treadle::test::peerFunctions();
  options.launch = treadle::Launch{treadle::kAnyRank, treadle::kOpenWorld, "127.0.0.1",
                                   static_cast<uint16_t>(std::atoi(arguments[2])), ""};
  options.heartbeatTimeout = std::chrono::milliseconds(std::atoi(arguments[3]));
  try {
    treadle::Worker::join(options)->shutdown();
  } catch (const std::exception& error) {
    std::printf("%s\n", error.what());
    return 1;
  }
}

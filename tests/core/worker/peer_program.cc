// Rank 1 of a job in a process of its own, which the test kills or stops: peer_program PORT SIZE. Serves
// until then, or until it has lost the test. TREADLE_TEST_MEMORY_LIMIT: its JoinOptions::memoryLimitBytes;
// TREADLE_TEST_HEARTBEAT_TIMEOUT: its heartbeatTimeout in seconds [60].

#include <cstdlib>
#include <exception>
#include <string>

#include "tests/core/worker/peer_functions.h"

int main(int, char** arguments) {
  treadle::JoinOptions options;
  options.name = "child";
  options.functions = treadle::test::peerFunctions();
  options.launch =
      treadle::Launch{1, std::atoi(arguments[2]), "127.0.0.1", static_cast<uint16_t>(std::atoi(arguments[1])), ""};
  options.joinTimeout = options.heartbeatTimeout = std::chrono::seconds(60);
  if (const char* limit = std::getenv("TREADLE_TEST_HEARTBEAT_TIMEOUT"))
    options.heartbeatTimeout = std::chrono::seconds(std::atoi(limit));
  if (const char* limit = std::getenv("TREADLE_TEST_MEMORY_LIMIT")) options.memoryLimitBytes = std::stoull(limit);
  try {
    treadle::Worker::join(options)->shutdown();
  } catch (const std::exception&) {
    std::_Exit(1);  // a handler may still wait for a signal
  }
}

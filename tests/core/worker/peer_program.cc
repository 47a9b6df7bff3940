// Rank 1 of a job in a process of its own, which the test kills or stops: peer_program PORT SIZE. Serves
// until then, or until it has lost the test. TREADLE_TEST_MEMORY_LIMIT: its JoinOptions::memoryLimitBytes;
// TREADLE_TEST_HEARTBEAT_TIMEOUT: its heartbeatTimeout in seconds [60]. TREADLE_TEST_JOB_KEY, TREADLE_TEST_RANK: of
// its Launch [none, 1]. TREADLE_TEST_USER: the number of the user that it becomes first.

#include <unistd.h>

#include <cstdlib>
#include <exception>
#include <string>

#include "tests/core/worker/peer_functions.h"

int main(int, char** arguments) {
  const char* user = std::getenv("TREADLE_TEST_USER");
  if (user != nullptr && ::setuid(static_cast<uid_t>(std::atoi(user))) != 0) return 1;
  treadle::JoinOptions options;
  options.name = "child";
  options.functions = treadle::test::peerFunctions();
  options.launch =
      treadle::Launch{1, std::atoi(arguments[2]), "127.0.0.1", static_cast<uint16_t>(std::atoi(arguments[1])), ""};
  if (const char* key = std::getenv("TREADLE_TEST_JOB_KEY")) options.launch->jobKey = key;
  if (const char* rank = std::getenv("TREADLE_TEST_RANK")) options.launch->rank = std::atoi(rank);
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

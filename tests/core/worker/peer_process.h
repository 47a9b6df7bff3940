#pragma once
// Starts the worker in peer_program.cc: "child", rank 1 of a job.

#include "tests/core/worker/peer_functions.h"
#include "tests/support/places.h"
#include "treadle/core/io/process.h"

namespace treadle::test {

inline io::Process startPeer(uint16_t port, std::vector<std::pair<std::string, std::string>> environment = {},
                             int jobSize = 2) {
  io::ProcessOptions options;
  options.program = testProgram("core_worker_peer_program");
  options.arguments = {std::to_string(port), std::to_string(jobSize)};
  options.environment = std::move(environment);
  return valueOrThrow(io::Process::start(options));
}

}  // namespace treadle::test

#include "treadle/core/summation/pump_state.h"

#include <utility>

#include "treadle/core/base/error.h"

namespace treadle::summation {
namespace {

// What the machine sends to each other one, of all bytes; by machine.
std::vector<double> sharesOfConnections(const Declaration& declaration, Machine self, size_t machines) {
  std::vector<double> bytes(machines);
  for (const Part& part : declaration.parts) {
    // A sum to each other worker; an addend to the machine that sums.
    for (Machine worker = 0; part.machine == self && worker < declaration.workers; ++worker)
      bytes[worker] += static_cast<double>(part.bytes());
    if (self < declaration.workers) bytes[part.machine] += static_cast<double>(part.bytes());
  }
  bytes[self] = 0;
  double all = 0;
  for (const double one : bytes) all += one;
  for (double& one : bytes) one = all > 0 ? one / all : 0;
  return bytes;
}

}  // namespace

PumpState::PumpState(Declaration declared, Machine machine, std::vector<std::string> machines, Duration time)
    : declaration(std::move(declared)),
      self(machine),
      names(std::move(machines)),
      causeTime(time),
      reactor(valueOrThrow(io::Reactor::make())),
      adder(declaration, self),
      requester(declaration, names.size()),
      order(sharesOfConnections(declaration, self, names.size())),
      departures(declaration.workers) {}

void PumpState::fail(Status status) {
  const bool mayFollow = status.code() == Code::kPeerLost;
  if (!why.ok() && (mayFollow || failsAt <= Clock::now())) return;  // the first one
  why = std::move(status);
  failsAt = mayFollow ? deadlineAfter(causeTime) : Clock::now();
  reactor->at(failsAt, [] {});  // the thread wakes up for it
}

}  // namespace treadle::summation

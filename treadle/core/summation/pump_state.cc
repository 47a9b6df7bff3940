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

PumpState::PumpState(Declaration declared, Machine machine, std::vector<std::string> machines, Duration patience,
                     std::shared_ptr<Traffic> counts)
    : self(machine),
      names(std::move(machines)),
      reactor(valueOrThrow(io::Reactor::make())),
      traffic(std::move(counts)),
      sums(std::move(declared), self, names.size()),
      order(sharesOfConnections(sums.declaration(), self, names.size()), SendOrder::kLeadBytes,
            /*endTogether=*/!declaration().mode.isAsynchronous),
      departures(sums.declaration().workers),
      losses(names.size(), patience) {}

Status PumpState::move(Machine lost, const std::vector<Machine>& machines) {
  TREADLE_RETURN_IF_ERROR(sums.move(lost, machines));
  order.setShares(sharesOfConnections(sums.declaration(), self, names.size()));
  isActive = true;  // reports of workers are waited for
  return {};
}

void PumpState::work() {
  const Activity::Kind kind = activity.kind();
  if (kind == Activity::Kind::kWaiting || kind == Activity::Kind::kMoving)
    activity.become(Activity::Kind::kComputing, Clock::now());
}

Status PumpState::left(Machine worker, const Frame& leave) {
  TREADLE_RETURN_IF_ERROR(departures.left(worker, leave));
  sums.left(worker);
  return {};
}

}  // namespace treadle::summation

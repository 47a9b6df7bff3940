#pragma once
// What a pump and its connections share: the machine's logic, and what happens to it. Of the pump's thread.

#include <memory>
#include <string>
#include <vector>

#include "treadle/core/io/reactor.h"
#include "treadle/core/summation/activity.h"
#include "treadle/core/summation/departures.h"
#include "treadle/core/summation/losses.h"
#include "treadle/core/summation/machine_sums.h"
#include "treadle/core/summation/send_order.h"
#include "treadle/core/summation/traffic.h"

namespace treadle::summation {

struct PumpState {
  // `names`: of all machines, for messages.
  PumpState(Declaration declared, Machine self, std::vector<std::string> names, Duration patience,
            std::shared_ptr<Traffic> traffic);

  const Declaration& declaration() const { return sums.declaration(); }
  bool isWorker(Machine machine) const { return sums.isWorker(machine); }
  // The parts of a lost server are summed by these machines: MachineSums::move.
  Status move(Machine lost, const std::vector<Machine>& machines);
  // The worker makes no more sums. DataLoss: what no worker sends.
  Status left(Machine worker, const Frame& leave);

  // The thread has something to do: what waits for that time is over, unless nothing was under way.
  void work();

  const Machine self;
  const std::vector<std::string> names;
  const std::unique_ptr<io::Reactor> reactor;
  const std::shared_ptr<Traffic> traffic;
  MachineSums sums;
  SendOrder order;
  Departures departures;
  Losses losses;
  uint64_t frames = 0;  // that have come or gone
  uint64_t bytesSent = 0, bytesReceived = 0;
  Activity activity;
  bool isActive = false;  // something has begun to be waited for
  Status failure;         // of the service here
};

}  // namespace treadle::summation

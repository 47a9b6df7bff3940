#pragma once
// What a pump and its connections share: the machine's logic, and what happens to it. Of the pump's thread.

#include <memory>
#include <string>
#include <vector>

#include "treadle/core/io/reactor.h"
#include "treadle/core/summation/adder.h"
#include "treadle/core/summation/departures.h"
#include "treadle/core/summation/requester.h"
#include "treadle/core/summation/send_order.h"

namespace treadle::summation {

struct PumpState {
  // `names`: of all machines, for messages.
  PumpState(Declaration declared, Machine self, std::vector<std::string> names, Duration causeTime);

  bool isWorker(Machine machine) const { return machine < declaration.workers; }
  // The service fails here: at once, or after causeTime where a connection ended. The other end of it may have failed
  // for a reason that comes by another channel.
  void fail(Status why);
  // Why it has failed, once it is time.
  Status failure() const { return Clock::now() < failsAt ? Status() : why; }

  const Declaration declaration;
  const Machine self;
  const std::vector<std::string> names;
  const Duration causeTime;
  const std::unique_ptr<io::Reactor> reactor;
  Adder adder;
  Requester requester;
  SendOrder order;
  Departures departures;
  std::vector<size_t> done;  // parts whose sums have come from other machines
  bool isActive = false;     // something has begun to be waited for
  Status why;
  TimePoint failsAt{};
};

}  // namespace treadle::summation

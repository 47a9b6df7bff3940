// What a pump notices by and by: sums that wait in vain, or too long.

#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "treadle/core/base/listed.h"
#include "treadle/core/summation/pump.h"

namespace treadle::summation {
namespace {

// How often the pump looks for what is late.
Duration lookInterval(Duration timeout) {
  constexpr int kLooks = 8;
  return std::clamp<Duration>(timeout / kLooks, std::chrono::milliseconds(1), std::chrono::seconds(1));
}

}  // namespace

// A worker that has begun more sums than another one had when that left waits in vain; of running sums one that waits
// for the first values.
Status Pump::checkCounts() const {
  if (const std::optional<size_t> part = state_.sums.adder().waitsInVain()) {
    const std::string& first = state_.names.front();
    return failedPrecondition(first + " has left the summation service, and has not given " +
                              state_.declaration().textOf(state_.declaration().parts[*part].tensor) +
                              ", with whose values all begin")
        .withWorker(first);
  }
  if (underWay_.empty() || state_.declaration().mode.isAsynchronous) return {};
  const std::optional<Machine> worker = state_.departures.leftBefore(sums_);
  if (!worker) return {};
  const std::string& name = state_.names[*worker];
  return failedPrecondition(name + " has left the summation service, and " + state_.names[state_.self] +
                            " waits for its data in the sum of " +
                            state_.declaration().textOf(underWay_.begin()->first) + " (sums begun: " +
                            std::to_string(state_.departures.sumsOf(*worker)) + " and " + std::to_string(sums_) + ")")
      .withWorker(name);
}

void Pump::watch() {
  if (watches_ || options_.timeout == kNoTimeout) return;
  watches_ = true;
  state_.reactor->at(deadlineAfter(lookInterval(options_.timeout)), [this] { look(); });
}

void Pump::look() {
  watches_ = false;
  Status late = overdueHere();
  if (late.ok()) late = overdueElsewhere();
  if (!late.ok() && state_.failure.ok()) state_.failure = std::move(late);
  if (!late.ok()) return;
  if (!underWay_.empty() || !state_.sums.adder().awaited().empty()) watch();
}

std::string Pump::namesOf(const std::vector<Machine>& machines) const {
  constexpr size_t kMost = 8;
  return listed(machines, kMost, [this](Machine machine) { return state_.names[machine]; });
}

// A part that this machine sums, and that some workers have not begun.
Status Pump::overdueHere() {
  const auto late = overdue_.look(state_.sums.adder().awaited(), Clock::now());
  if (!late) return {};
  const std::vector<size_t> missing = state_.sums.adder().missing(late->first);
  return deadlineExceeded("the sum of " + state_.declaration().textOf(state_.declaration().parts[late->first].tensor) +
                          " was not begun in " + toText(options_.timeout) + " by " + namesOf(missing))
      .withWorker(state_.names[missing.front()]);
}

// A sum that does not end, while nothing comes or goes.
Status Pump::overdueElsewhere() {
  const TimePoint now = Clock::now();
  if (std::exchange(framesAtLook_, state_.frames) != state_.frames) lastFrame_ = now;
  for (const auto& [tensor, sum] : underWay_) {
    if (now - std::max(sum.begun, lastFrame_) - 3 * lookInterval(options_.timeout) < options_.timeout) continue;
    const auto [first, end] = state_.declaration().partsOf(tensor);
    std::set<Machine> machines;
    for (size_t part = first; part < end; ++part) {
      if (!state_.sums.isHere(part)) machines.insert(state_.declaration().parts[part].machine);
    }
    const std::string what =
        "the sum of " + state_.declaration().textOf(tensor) + " was not done in " + toText(options_.timeout);
    if (machines.empty()) return deadlineExceeded(what + ": it is here, and some other worker has not reported it");
    Status late = deadlineExceeded(what + ": it lacks the parts that are summed by " +
                                   namesOf({machines.begin(), machines.end()}));
    return machines.size() > 1 ? late : std::move(late).withWorker(state_.names[*machines.begin()]);
  }
  return {};
}

}  // namespace treadle::summation

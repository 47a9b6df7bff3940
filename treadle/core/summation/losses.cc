#include "treadle/core/summation/losses.h"

#include <algorithm>
#include <utility>

namespace treadle::summation {

void Losses::connectionEnded(Machine machine, Status why, TimePoint now) {
  add(&Signs::connection, machine, std::move(why), now);
}

void Losses::reported(Machine machine, Status why, TimePoint now) {
  add(&Signs::report, machine, std::move(why), now);
  Signs& signs = signs_[machine];
  if (!signs.isOver) signs.reportedAt = std::min(signs.reportedAt, now);
}

void Losses::add(Status Signs::* sign, Machine machine, Status why, TimePoint now) {
  Signs& signs = signs_[machine];
  if (signs.isOver || !(signs.*sign).ok()) return;
  signs.*sign = std::move(why);
  signs.due = std::min(signs.due, now + patience_);
  if (!signs.connection.ok() && !signs.report.ok()) signs.due = now;
}

// The report says more than the end of a connection.
std::optional<Losses::Loss> Losses::certain(TimePoint now) const {
  const auto firstBy = [&](TimePoint Signs::* time) {
    return std::min_element(signs_.begin(), signs_.end(),
                            [time](const Signs& a, const Signs& b) { return a.*time < b.*time; });
  };
  const auto counts = firstBy(&Signs::due);
  if (counts == signs_.end() || counts->due > now) return {};
  const auto reported = firstBy(&Signs::reportedAt);
  const auto machineOf = [&](auto signs) { return static_cast<Machine>(signs - signs_.begin()); };
  if (!counts->report.ok() || reported->reportedAt <= counts->due - patience_)
    return Loss{machineOf(reported), reported->report};
  return Loss{machineOf(counts), counts->connection};
}

std::optional<TimePoint> Losses::due() const {
  TimePoint first = kNever;
  for (const Signs& signs : signs_) first = std::min(first, signs.due);
  return first == kNever ? std::nullopt : std::optional(first);
}

}  // namespace treadle::summation

#include "treadle/core/summation/losses.h"

#include <algorithm>
#include <utility>

namespace treadle::summation {

void Losses::connectionEnded(Machine machine, Status why, TimePoint now) {
  add(&Signs::connection, machine, std::move(why), now);
}

void Losses::reported(Machine machine, Status why, TimePoint now) { add(&Signs::report, machine, std::move(why), now); }

void Losses::add(Status Signs::* sign, Machine machine, Status why, TimePoint now) {
  Signs& signs = signs_[machine];
  if (signs.isOver || !(signs.*sign).ok()) return;
  signs.*sign = std::move(why);
  signs.due = std::min(signs.due, now + patience_);
  if (!signs.connection.ok() && !signs.report.ok()) signs.due = now;
}

// Of several the first. The report says more than the end of a connection.
Status Losses::certain(TimePoint now) const {
  const auto first =
      std::min_element(signs_.begin(), signs_.end(), [](const Signs& a, const Signs& b) { return a.due < b.due; });
  if (first == signs_.end() || first->due > now) return {};
  return first->report.ok() ? first->connection : first->report;
}

std::optional<TimePoint> Losses::due() const {
  TimePoint first = kNever;
  for (const Signs& signs : signs_) first = std::min(first, signs.due);
  return first == kNever ? std::nullopt : std::optional(first);
}

}  // namespace treadle::summation

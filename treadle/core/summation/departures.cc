#include "treadle/core/summation/departures.h"

#include <algorithm>

namespace treadle::summation {

Status Departures::left(Machine machine, const Frame& leave) {
  if (machine >= sums_.size()) return neverSent("that it leaves, though it is no worker,");
  if (sums_[machine]) return neverSent("that it leaves once more");
  if (leave.tensor != 0 || leave.offset != 0) return neverSent("that it leaves a tensor");
  sums_[machine] = leave.round;
  return {};
}

bool Departures::allHaveLeft() const {
  return std::all_of(sums_.begin(), sums_.end(), [](const auto& one) { return one.has_value(); });
}

std::optional<Machine> Departures::leftBefore(uint64_t sums) const {
  const auto found = std::find_if(sums_.begin(), sums_.end(), [&](const auto& one) { return one && *one < sums; });
  return found == sums_.end() ? std::nullopt : std::optional<Machine>(found - sums_.begin());
}

}  // namespace treadle::summation

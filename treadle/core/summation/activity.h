#pragma once
// What a thread has spent its time with, by the clock of its caller. Plain value.

#include <array>
#include <cstddef>
#include <utility>

#include "treadle/core/base/clock.h"

namespace treadle::summation {

class Activity {
 public:
  enum class Kind { kIdle, kWaiting, kMoving, kComputing };

  // The time since the last call counts for the kind of that call.
  void become(Kind kind, TimePoint now) {
    spent_[static_cast<size_t>(std::exchange(kind_, kind))] += now - std::exchange(since_, now);
  }
  Kind kind() const { return kind_; }
  Duration spent(Kind kind) const { return spent_[static_cast<size_t>(kind)]; }

 private:
  Kind kind_ = Kind::kIdle;
  TimePoint since_{};
  std::array<Duration, 4> spent_{};
};

}  // namespace treadle::summation

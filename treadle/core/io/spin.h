#pragma once
// Looking again for a short while before sleeping: what comes within tens of microseconds is met awake, where waking up
// would cost as much again. Each look yields the core, and there is none on a machine whose cores are all busy: when
// somebody else ran meanwhile, this thread goes to sleep, and for a while does not begin again.
//
// Of the thread that makes it. Budget of a look: a sched_yield and two readings of the clock.

#include "treadle/core/base/clock.h"

namespace treadle::io {

class Spin {
 public:
  // Zero: never.
  explicit Spin(Duration window);

  // Goes on until then at least.
  void prolong(TimePoint until);

  // Yields; false when it is time to sleep.
  bool again();

 private:
  TimePoint end_;
};

}  // namespace treadle::io

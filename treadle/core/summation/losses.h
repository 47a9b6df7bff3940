#pragma once
// Decides when a machine is lost to a summation service. Its connection ends, and the job reports that it was lost: the
// two together are a loss, whichever comes first. One of them alone counts after a while, as it may be something else:
// a connection also ends when the other machine fails for a reason that its own report says, and a machine that has
// left may be gone before its last frame is read. Pure logic; one thread at a time.

#include <optional>
#include <vector>

#include "treadle/core/base/clock.h"
#include "treadle/core/base/status.h"
#include "treadle/core/summation/part_placement.h"

namespace treadle::summation {

class Losses {
 public:
  Losses(size_t machines, Duration patience) : signs_(machines), patience_(patience) {}

  // The connection ended, and not because the service did.
  void connectionEnded(Machine machine, Status why, TimePoint now);
  void reported(Machine machine, Status why, TimePoint now);
  // The connection ended because the service did, or goes on without the machine: whatever is reported is no news.
  void ignore(Machine machine) { signs_[machine] = {.isOver = true}; }

  struct Loss {
    Machine machine = 0;
    Status why;
  };
  // Nothing as long as no loss counts. Then the one that was reported first, as the others may follow from it: a
  // machine that is silent, whose connection has not ended, loses its job the machines that leave over it.
  std::optional<Loss> certain(TimePoint now) const;
  // When one will count if nothing else comes.
  std::optional<TimePoint> due() const;

 private:
  struct Signs {
    Status connection = {}, report = {};
    TimePoint reportedAt = kNever, due = kNever;
    bool isOver = false;
  };

  void add(Status Signs::* sign, Machine machine, Status why, TimePoint now);

  std::vector<Signs> signs_;  // by machine
  const Duration patience_;
};

}  // namespace treadle::summation

#pragma once
// Which workers have left a summation service, as one of its machines sees it. A worker leaves when all its sums have
// ended, which takes the data of all workers where the service is synchronous. So no other worker has begun fewer sums,
// and one that has begun more waits in vain. Sums of tensors without bytes, which need nobody, do not count. Pure
// logic; one thread at a time.

#include <optional>
#include <vector>

#include "treadle/core/base/status.h"
#include "treadle/core/summation/frame.h"
#include "treadle/core/summation/part_placement.h"

namespace treadle::summation {

class Departures {
 public:
  explicit Departures(size_t workers) : sums_(workers) {}

  // DataLoss: what no worker sends.
  Status left(Machine machine, const Frame& leave);

  bool hasLeft(Machine machine) const { return machine < sums_.size() && sums_[machine]; }
  bool allHaveLeft() const;
  // A worker that left after fewer sums than that.
  std::optional<Machine> leftBefore(uint64_t sums) const;
  // How many sums a worker that has left had made.
  uint64_t sumsOf(Machine worker) const { return sums_[worker].value(); }

 private:
  std::vector<std::optional<uint64_t>> sums_;  // by worker, once it has left
};

}  // namespace treadle::summation

#pragma once
// Decides when a job is over: when every worker is in its shutdown, and no call is under way anywhere. Mattern's
// four-counter method (F. Mattern, "Algorithms for distributed termination detection", 1987): workers report how many
// requests they have sent and handled whenever they have nothing to do; when all have reported and the sums agree, all
// are asked again, and if nothing has changed, nothing was under way in between. Pure logic of rank 0; its owner locks.

#include <cstdint>
#include <optional>
#include <vector>

namespace treadle::cluster {

struct WorkCount {
  uint64_t sent = 0;     // requests that this worker sent
  uint64_t handled = 0;  // requests of others that it has answered
  bool idle = false;     // it is in its shutdown, awaits no answer and runs nothing

  bool operator==(const WorkCount&) const = default;
};

// Why two looks: the counts arrive at different times, so equal sums alone may add up by accident, a request
// sent after one report and handled before another. Counts never fall; when the second look finds every
// single one as it was, all of them held at one moment between the two.
class ShutdownVote {
 public:
  enum class Action { kNone, kProbe, kFinish };

  explicit ShutdownVote(int worldSize)
      : newest_(static_cast<size_t>(worldSize)), before_(newest_.size()), answers_(newest_.size()) {}

  // A worker reports that it is idle now. kProbe: ask all workers, in round `round()`.
  Action report(int rank, WorkCount count);
  // A worker's answer to a probe. kFinish: the job is over; tell all. What a worker says must come in the order in
  // which it counted.
  Action answer(int rank, uint64_t round, WorkCount count);

  uint64_t round() const { return round_; }
  // Ranks that are not idle as far as is known.
  std::vector<int> waitingFor() const;

 private:
  Action probeIfSumsAgree();

  std::vector<WorkCount> newest_;  // what each said last, whether in a report or in an answer
  std::vector<WorkCount> before_;  // the same when the probe went out
  std::vector<std::optional<WorkCount>> answers_;
  uint64_t round_ = 0;
  bool probing_ = false;
};

}  // namespace treadle::cluster

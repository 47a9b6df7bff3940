#pragma once
// Decides when a job is over: when every worker is in its shutdown, and no call is under way anywhere. Mattern's
// four-counter method (F. Mattern, "Algorithms for distributed termination detection", 1987): workers report how many
// requests they have sent and handled whenever they have nothing to do; when all have reported and the sums agree, all
// are asked again, and if nothing has changed, nothing was under way in between. Pure logic of the keeper; its owner
// locks.

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

namespace treadle::cluster {

struct WorkCount {
  uint64_t sent = 0;     // requests that this worker sent to workers that it has not lost
  uint64_t handled = 0;  // requests of such workers that it has answered
  bool idle = false;     // it is in its shutdown, awaits no answer and runs nothing
  uint64_t gone = 0;     // workers that it has lost, or that had gone before it came: Membership::gone

  bool operator==(const WorkCount&) const = default;
};

// Why two looks: the counts arrive at different times, so equal sums alone may add up by accident, a request
// sent after one report and handled before another. Counts fall only when `gone` rises; when the second look finds
// every single one as it was, all of them held at one moment between the two.
//
// A worker that goes takes what it sent and handled along: the sums are compared when all agree on how many are gone.
class ShutdownVote {
 public:
  enum class Action { kNone, kProbe, kFinish };

  // The round that is under way, if any, is void with each of these. The new one will report; when one goes the others
  // report again, as their counts have changed.
  void add(int rank);
  void remove(int rank);

  // A worker reports that it is idle now. kProbe: ask all workers, in round `round()`.
  Action report(int rank, const WorkCount& count);
  // A worker's answer to a probe. kFinish: the job is over; tell all. What a worker says must come in the order in
  // which it counted.
  Action answer(int rank, uint64_t round, const WorkCount& count);

  uint64_t round() const { return round_; }
  // Ranks that are not idle as far as is known.
  std::vector<int> waitingFor() const;

 private:
  struct Member {
    WorkCount newest;  // what it said last, whether in a report or in an answer
    WorkCount before;  // the same when the probe went out
    std::optional<WorkCount> answer;
  };

  Action probeIfSumsAgree();

  std::map<int, Member> members_;  // by rank
  uint64_t round_ = 0;
  bool probing_ = false;
};

}  // namespace treadle::cluster

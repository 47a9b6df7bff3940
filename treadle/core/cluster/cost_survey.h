#pragma once
// How rank 0 measures the costs of the job's links (costs.h) while the workers meet. It sends probes over the
// connections of the rendezvous, to one worker on its own host and to one on another host, and these send back an echo
// at once. A state machine without clock and sockets: the server gives it the time and sends what it asks for, so it
// waits for nobody. One thread at a time.

#include <vector>

#include "treadle/core/base/clock.h"
#include "treadle/core/cluster/costs.h"
#include "treadle/core/cluster/roster_entry.h"

namespace treadle::cluster {

class CostSurvey {
 public:
  struct Probe {
    int rank = 0;
    uint32_t number = 0;
    size_t sizeBytes = 0;  // beside the header
  };

  // `known`: what is not measured. `roster`: by rank. `sharesMemory`: between workers of one host data goes through
  // memory, whose bandwidth is known.
  CostSurvey(const Costs& known, const std::vector<RosterEntry>& roster, bool sharesMemory);

  // The probes to send at this time, so that the last echo comes about `time` later at most, or after three round trips
  // to each worker. None are left when `done`.
  std::vector<Probe> begin(TimePoint now, Duration time = kSurveyTime);
  // The same, after an echo of the probe `number`. Ignores an echo that it does not wait for.
  std::vector<Probe> onEcho(int rank, uint32_t number, TimePoint now);
  bool done() const { return subject_ == subjects_.size(); }

  // Rounded. Before `done`: as far as they are measured.
  Costs costs() const { return rounded(costs_); }

 private:
  struct Subject {
    int rank;
    LinkCosts Costs::* link;
    bool transfers;  // its bandwidth is measured
  };

  std::vector<Probe> send(TimePoint now);
  void note(Duration took);
  bool advance(TimePoint now, Duration last);

  Costs costs_;
  std::vector<Subject> subjects_;
  size_t subject_ = 0, phase_ = 0;
  int round_ = 0;
  uint32_t number_ = 0;  // of the probes of this round
  int missing_ = 0;      // echoes of this round
  TimePoint sentAt_{}, end_{};
  Duration fastest_ = Duration::max();  // round of this phase
  Duration roundTrip_{};                // to the subject
};

}  // namespace treadle::cluster

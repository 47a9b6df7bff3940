#pragma once
// What rank 0 of the doctors does: asks each worker, has each pair try each channel, several pairs at a time, and
// writes down what it hears. Ends at the deadline, with what there is. One thread.

#include <set>

#include "treadle/cli/doctor.h"
#include "treadle/cli/worker_environment.h"

namespace treadle::cli {

class Examination {
 public:
  Examination(Worker& worker, TimePoint deadline, Findings& findings)
      : worker_(worker),
        deadline_(deadline),
        longestProbe_(std::max<Duration>(std::chrono::seconds(3), (deadline - Clock::now()) / 4)),
        findings_(findings),
        workers_(findings.workers) {}

  void run();

 private:
  using Pair = std::pair<int, int>;
  using Round = std::vector<Pair>;

  void askAll();
  void tryChannel(const std::string& channel);
  void tryRound(const std::string& channel, const Round& round);
  void findRoutes();
  void note(const std::string& channel, Pair pair, bool works, std::string text, double microseconds = 0);
  std::string whyNot(const std::string& channel, Pair pair) const;
  std::string whyGone(Pair pair) const;
  bool late() const { return Clock::now() >= deadline_; }
  Duration left() const;
  CallProxy limited() const { return worker_.with({.timeout = left()}); }

  Worker& worker_;
  const TimePoint deadline_;
  const Duration longestProbe_;  // one works at once or, as a rule, never
  Findings& findings_;
  const int workers_;
  std::vector<std::optional<Told>> told_;  // by rank
  std::vector<ReservedPort> ports_;        // where the pairs of a round meet
};

// All pairs of so many workers, in rounds in which nobody is twice.
std::vector<std::vector<std::pair<int, int>>> roundsOf(int workers);

}  // namespace treadle::cli

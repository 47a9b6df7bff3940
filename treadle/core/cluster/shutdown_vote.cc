#include "treadle/core/cluster/shutdown_vote.h"

#include <algorithm>

namespace treadle::cluster {

ShutdownVote::Action ShutdownVote::report(int rank, WorkCount count) {
  reports_[static_cast<size_t>(rank)] = count;
  if (probing_ || !sumsAgree()) return Action::kNone;
  probing_ = true;
  ++round_;
  std::fill(answers_.begin(), answers_.end(), std::nullopt);
  return Action::kProbe;
}

ShutdownVote::Action ShutdownVote::answer(int rank, uint64_t round, WorkCount count) {
  if (!probing_ || round != round_) return Action::kNone;
  answers_[static_cast<size_t>(rank)] = count;
  if (!std::all_of(answers_.begin(), answers_.end(), [](const auto& one) { return one.has_value(); }))
    return Action::kNone;
  probing_ = false;
  if (answers_ == reports_) return Action::kFinish;
  // Something was still under way. What an idle worker said counts as its newest report; the others report again.
  for (size_t i = 0; i < answers_.size(); ++i) reports_[i] = answers_[i]->idle ? answers_[i] : std::nullopt;
  return reports_[0] ? report(0, *reports_[0]) : Action::kNone;
}

bool ShutdownVote::sumsAgree() const {
  uint64_t sent = 0, handled = 0;
  for (const auto& one : reports_) {
    if (!one) return false;
    sent += one->sent;
    handled += one->handled;
  }
  return sent == handled;
}

std::vector<int> ShutdownVote::waitingFor() const {
  std::vector<int> ranks;
  for (size_t i = 0; i < reports_.size(); ++i)
    if (!reports_[i]) ranks.push_back(static_cast<int>(i));
  return ranks;
}

}  // namespace treadle::cluster

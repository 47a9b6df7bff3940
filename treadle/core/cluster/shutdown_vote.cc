#include "treadle/core/cluster/shutdown_vote.h"

#include <algorithm>

namespace treadle::cluster {

ShutdownVote::Action ShutdownVote::report(int rank, WorkCount count) {
  newest_[static_cast<size_t>(rank)] = count;
  return probeIfSumsAgree();
}

ShutdownVote::Action ShutdownVote::answer(int rank, uint64_t round, WorkCount count) {
  if (!probing_ || round != round_) return Action::kNone;
  newest_[static_cast<size_t>(rank)] = count;
  answers_[static_cast<size_t>(rank)] = count;
  if (!std::all_of(answers_.begin(), answers_.end(), [](const auto& one) { return one.has_value(); }))
    return Action::kNone;
  probing_ = false;
  // A report that came after its sender's answer is no part of the comparison: it belongs to the next round.
  bool unchanged = std::equal(answers_.begin(), answers_.end(), before_.begin());
  return unchanged ? Action::kFinish : probeIfSumsAgree();
}

ShutdownVote::Action ShutdownVote::probeIfSumsAgree() {
  uint64_t sent = 0, handled = 0;
  for (const WorkCount& one : newest_) {
    if (!one.idle) return Action::kNone;
    sent += one.sent;
    handled += one.handled;
  }
  if (probing_ || sent != handled) return Action::kNone;
  probing_ = true;
  ++round_;
  before_ = newest_;
  std::fill(answers_.begin(), answers_.end(), std::nullopt);
  return Action::kProbe;
}

std::vector<int> ShutdownVote::waitingFor() const {
  std::vector<int> ranks;
  for (size_t i = 0; i < newest_.size(); ++i)
    if (!newest_[i].idle) ranks.push_back(static_cast<int>(i));
  return ranks;
}

}  // namespace treadle::cluster

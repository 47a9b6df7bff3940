#include "treadle/core/cluster/shutdown_vote.h"

#include <algorithm>

namespace treadle::cluster {

void ShutdownVote::add(int rank) {
  members_.emplace(rank, Member());
  probing_ = false;
}

void ShutdownVote::remove(int rank) {
  members_.erase(rank);
  probing_ = false;
}

ShutdownVote::Action ShutdownVote::report(int rank, const WorkCount& count) {
  auto found = members_.find(rank);
  if (found == members_.end()) return Action::kNone;
  found->second.newest = count;
  return probeIfSumsAgree();
}

ShutdownVote::Action ShutdownVote::answer(int rank, uint64_t round, const WorkCount& count) {
  auto found = members_.find(rank);
  if (found == members_.end() || !probing_ || round != round_) return Action::kNone;
  found->second.newest = count;
  found->second.answer = count;
  auto all = [&](auto holds) {
    return std::all_of(members_.begin(), members_.end(), [&](const auto& one) { return holds(one.second); });
  };
  if (!all([](const Member& one) { return one.answer.has_value(); })) return Action::kNone;
  probing_ = false;
  // A report that came after its sender's answer is no part of the comparison: it belongs to the next round.
  bool unchanged = all([](const Member& one) { return *one.answer == one.before; });
  return unchanged ? Action::kFinish : probeIfSumsAgree();
}

ShutdownVote::Action ShutdownVote::probeIfSumsAgree() {
  if (probing_ || members_.empty()) return Action::kNone;
  const uint64_t gone = members_.begin()->second.newest.gone;
  uint64_t sent = 0, handled = 0;
  for (const auto& [rank, one] : members_) {
    if (!one.newest.idle || one.newest.gone != gone) return Action::kNone;
    sent += one.newest.sent;
    handled += one.newest.handled;
  }
  if (sent != handled) return Action::kNone;
  probing_ = true;
  ++round_;
  for (auto& [rank, one] : members_) {
    one.before = one.newest;
    one.answer.reset();
  }
  return Action::kProbe;
}

std::vector<int> ShutdownVote::waitingFor() const {
  std::vector<int> ranks;
  for (const auto& [rank, one] : members_)
    if (!one.newest.idle) ranks.push_back(rank);
  return ranks;
}

}  // namespace treadle::cluster

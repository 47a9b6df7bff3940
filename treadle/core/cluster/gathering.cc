#include "treadle/core/cluster/gathering.h"

#include <algorithm>

namespace treadle::cluster {

std::vector<Gathering::Word> Gathering::lose(int rank) {
  if (members_.erase(rank) == 0) return {};
  std::vector<Word> words;
  for (auto& [member, entered] : members_) {
    for (const Entered& one : entered) words.push_back({member, one.round});
    entered.clear();
  }
  return words;
}

std::vector<Gathering::Complete> Gathering::leave(int rank) {
  members_.erase(rank);
  std::vector<Complete> complete;
  while (allCame()) complete.push_back(takeFirst());
  return complete;
}

bool Gathering::allCame() const {
  return !members_.empty() &&
         std::none_of(members_.begin(), members_.end(), [](const auto& one) { return one.second.empty(); });
}

Result<std::optional<Gathering::Complete>> Gathering::enter(int rank, uint64_t round, std::vector<std::byte> value) {
  auto found = members_.find(rank);
  if (found == members_.end()) return std::optional<Complete>();
  size_t bytes = value.size();
  for (const Entered& one : found->second) bytes += one.value.size();
  if (found->second.size() >= kMostAhead || bytes > kMostAheadBytes)
    return resourceExhausted("it came to over " + std::to_string(kMostAhead) +
                             " barriers that others have not come to");
  found->second.push_back({round, std::move(value)});
  return allCame() ? std::optional(takeFirst()) : std::nullopt;
}

Gathering::Complete Gathering::takeFirst() {
  Complete complete;
  bool barrier = false, values = false;
  for (auto& [rank, entered] : members_) {
    Entered& first = entered.front();
    (first.value.empty() ? barrier : values) = true;
    complete.words.push_back({rank, first.round});
    if (!first.value.empty()) complete.values.push_back({rank, std::move(first.value)});
    entered.pop_front();
  }
  if (barrier && values) {
    complete.failure = invalidArgument("some workers called barrier() where others called allGather()");
    complete.values.clear();
  }
  return complete;
}

std::vector<int> Gathering::waitingFor() const {
  std::vector<int> ranks;
  for (const auto& [rank, entered] : members_)
    if (entered.empty()) ranks.push_back(rank);
  return ranks.size() == members_.size() ? std::vector<int>() : ranks;
}

}  // namespace treadle::cluster

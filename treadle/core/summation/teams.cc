#include "treadle/core/summation/teams.h"

#include <algorithm>
#include <map>

namespace treadle::summation {
namespace {

// By the number of each worker's team.
Teams gathered(const std::vector<std::string>& workers, const std::vector<size_t>& numbers) {
  std::map<size_t, size_t> places;
  Teams teams;
  for (size_t worker = 0; worker < workers.size(); ++worker) {
    const size_t place = places.emplace(numbers[worker], teams.size()).first->second;
    if (place == teams.size()) teams.emplace_back();
    teams[place].push_back(workers[worker]);
  }
  return teams;
}

}  // namespace

Result<Teams> teamsOf(const std::vector<std::string>& workers, const Teams& named) {
  std::vector<size_t> numbers(workers.size());
  for (size_t worker = 0; worker < workers.size(); ++worker) numbers[worker] = named.size() + worker;  // alone
  for (size_t team = 0; team < named.size(); ++team) {
    if (named[team].empty()) return invalidArgument("SummationOptions::teams has a team without workers");
    for (const std::string& name : named[team]) {
      const auto found = std::find(workers.begin(), workers.end(), name);
      if (found == workers.end())
        return invalidArgument(
            "'" + name + "' is in SummationOptions::teams and not among the workers of the service; leave it out");
      size_t& number = numbers[static_cast<size_t>(found - workers.begin())];
      if (number < named.size())
        return invalidArgument("'" + name + "' is twice in SummationOptions::teams; a worker is in one team");
      number = team;
    }
  }
  return gathered(workers, numbers);
}

Teams teamsByHost(const std::vector<std::string>& workers, const group::Placement& placement) {
  Teams teams;
  for (const std::vector<int>& host : placement.ranksByHost()) {
    teams.emplace_back();
    for (const int worker : host) teams.back().push_back(workers[static_cast<size_t>(worker)]);
  }
  if (teams.size() > 1) return teams;
  teams.clear();
  for (const std::string& worker : workers) teams.push_back({worker});
  return teams;
}

}  // namespace treadle::summation

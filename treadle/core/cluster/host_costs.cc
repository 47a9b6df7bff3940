#include "treadle/core/cluster/host_costs.h"

#include <algorithm>
#include <thread>

#include "treadle/core/base/environment.h"

namespace treadle::cluster {

Costs costsOfThisHost() {
  Costs costs;
  costs.cores = std::max(1U, std::thread::hardware_concurrency());
  return costs;
}

Result<std::optional<Costs>> costsOfEnvironment() {
  const std::optional<std::string> text = base::environment("TREADLE_COSTS");
  if (!text) return std::optional<Costs>();
  Result<Costs> costs = parseCosts(*text);
  if (!costs.ok()) return costs.status().withContext("TREADLE_COSTS");
  return std::optional(*costs);
}

}  // namespace treadle::cluster

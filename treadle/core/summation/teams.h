#pragma once
// Which workers of a summation service sum among themselves first (SummationOptions::teams). Pure functions; any
// thread.

#include <string>
#include <vector>

#include "treadle/core/base/status.h"
#include "treadle/core/group/placement.h"

namespace treadle::summation {

// Each worker is in one team, maybe alone. A team has its workers in their order in the service, and teams are in the
// order of their first workers.
using Teams = std::vector<std::vector<std::string>>;

// InvalidArgument: a name that is no worker's, or is there twice; a team without workers.
Result<Teams> teamsOf(const std::vector<std::string>& workers, const Teams& named);

// Those of one host together. Where all are on one host, each is alone: they would need no service then, and the
// servers of a trial shall have something to sum. `placement`: of the workers.
Teams teamsByHost(const std::vector<std::string>& workers, const group::Placement& placement);

}  // namespace treadle::summation

#pragma once
// What a worker knows of costs without the others.

#include <optional>

#include "treadle/core/base/status.h"
#include "treadle/core/cluster/costs.h"

namespace treadle::cluster {

// The defaults, with the cores of this host.
Costs costsOfThisHost();

// Those that TREADLE_COSTS says (parseCosts), in place of all measuring; nothing without it. InvalidArgument.
Result<std::optional<Costs>> costsOfEnvironment();

}  // namespace treadle::cluster

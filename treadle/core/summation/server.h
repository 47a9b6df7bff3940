#pragma once
// What a summation server does with an invitation to a service. A free function; it waits.

#include "treadle/core/summation/job.h"
#include "treadle/core/summation/service_messages.h"

namespace treadle::summation {

// This worker takes part in the service, as one of its servers. Returns when all workers have left it, or it has
// failed, which goes to the log.
void serve(Job& job, const Invitation& invitation);

}  // namespace treadle::summation

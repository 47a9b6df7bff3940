#include "treadle/core/summation/server.h"

#include <new>

#include "treadle/core/base/error.h"
#include "treadle/core/base/listed.h"
#include "treadle/core/base/log.h"
#include "treadle/core/summation/service.h"
#include "treadle/core/summation/services.h"

namespace treadle::summation {

void serve(Job& job, const Invitation& invitation) try {
  constexpr size_t kNamed = 8;
  const std::string& self = job.services().self().name;
  const std::string what =
      "a summation service of " + listed(invitation.workers, kNamed, [](const std::string& name) { return name; });
  try {
    const SummationService service = SummationService::serve(job, {.workers = invitation.workers,
                                                                   .servers = invitation.servers,
                                                                   .name = invitation.name,
                                                                   .timeout = invitation.timeout});
    logDebug(self, "this server takes part in " + what);
    service.ended().wait();
    logDebug(self, what + " has ended");
  } catch (...) {
    const Status why = statusOfCurrentException("serving");
    if (why.code() != Code::kCancelled) logWarn(self, what + " has failed: " + why.message());
  }
} catch (const std::bad_alloc&) {  // for the words
}

}  // namespace treadle::summation

#include "treadle/train/ddp/group_use.h"

#include <unordered_set>

#include "treadle/core/base/error.h"
#include "treadle/core/base/mutex.h"

namespace treadle::ddp {
namespace {

struct Uses {
  Mutex mutex;
  std::unordered_set<const group::GroupCore*> groups TREADLE_GUARDED_BY(mutex);
};

Uses& uses() {
  static Uses* const all = new Uses;  // passes may end while the process does
  return *all;
}

}  // namespace

std::shared_ptr<void> useGroup(const ProcessGroup& group) {
  MutexLock lock(uses().mutex);
  if (!uses().groups.insert(&group.core()).second)
    raise(
        failedPrecondition("the group of this DistributedDataParallel averages the gradients of another module in a "
                           "pass that is under way: make a group for each of the modules that are in one pass, or "
                           "whose passes overlap"));
  return {nullptr, [group](void*) {
            MutexLock lock(uses().mutex);
            uses().groups.erase(&group.core());
          }};
}

}  // namespace treadle::ddp

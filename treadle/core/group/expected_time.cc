#include "treadle/core/group/expected_time.h"

#include "treadle/core/group/choice.h"
#include "treadle/core/group/group_core.h"
#include "treadle/core/group/prediction.h"

namespace treadle::group {

double expectedAllReduceTime(const ProcessGroup& group, uint64_t bytes) {
  if (group.size() == 1) return 0;
  const GroupOptions& options = group.options();
  const Surroundings& surroundings = group.core().surroundings();
  Description what{OperationKind::kAllReduce, DataType::kFloat32, ReduceOp::kAverage};
  what.count = bytes / sizeOf(what.dataType);
  what.smallBytes = options.smallBytes;
  what.chunkBytes = options.chunkBytes;
  const Result<Algorithm> algorithm = group.algorithmFor(what);
  return algorithm.ok() ? timeOf(*algorithm, what, surroundings.placement, surroundings.costs) : 0;
}

}  // namespace treadle::group

#include "treadle/core/group/expected_time.h"

#include "treadle/core/group/choice.h"
#include "treadle/core/group/group_core.h"
#include "treadle/core/group/prediction.h"

namespace treadle::group {
namespace {

Description averageOf(const ProcessGroup& group, uint64_t bytes, DataType type) {
  Description what{OperationKind::kAllReduce, type, ReduceOp::kAverage};
  what.count = bytes / sizeOf(what.dataType);
  what.smallBytes = group.options().smallBytes;
  what.chunkBytes = group.options().chunkBytes;
  return what;
}

}  // namespace

Result<Algorithm> algorithmOfAverage(const ProcessGroup& group, uint64_t bytes, DataType type) {
  TREADLE_RETURN_IF_ERROR(checkReduces(type, ReduceOp::kAverage));
  if (group.size() == 1) return Algorithm::kAutomatic;
  return group.algorithmFor(averageOf(group, bytes, type));
}

double expectedAllReduceTime(const ProcessGroup& group, uint64_t bytes) {
  if (group.size() == 1) return 0;
  const Surroundings& surroundings = group.core().surroundings();
  const Description what = averageOf(group, bytes, DataType::kFloat32);
  const Result<Algorithm> algorithm = group.algorithmFor(what);
  return algorithm.ok() ? timeOf(*algorithm, what, surroundings.placement, surroundings.costs) : 0;
}

}  // namespace treadle::group

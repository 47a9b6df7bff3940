#pragma once
// The options of a process group. All members must use the same sizes and algorithm: a difference fails the operation.

#include <string>
#include <vector>

#include "treadle/core/base/clock.h"
#include "treadle/core/base/status.h"
#include "treadle/core/group/algorithm.h"
#include "treadle/core/group/data_type.h"

namespace treadle::group {

inline constexpr size_t kMostSmallBytes = size_t{1}
                                          << 20;  // kAhead of them per stream may lie at a member that is late

struct GroupOptions {
  std::string name = {};                        // for messages; another name means another group
  Duration timeout = std::chrono::seconds(60);  // limit of each operation; kNoTimeout: until a member is lost
  size_t smallBytes = size_t{64} << 10;         // data up to this size may take fewer steps and more bytes
  size_t chunkBytes = size_t{256} << 10;        // large data is sent in chunks of this size
  // For all operations but barriers and sends, which have no choice. One that it cannot do is refused (ArgumentError).
  Algorithm algorithm = Algorithm::kAutomatic;
  SumOrder sumOrder = SumOrder::kAny;  // kRank leaves out the algorithms that add partial sums
  // A name that pushPull has waited for so long is reported in the log of the group's rank 0, with the members that
  // have not offered it. kNoTimeout: none is.
  Duration stallReport = std::chrono::seconds(30);

  Status validate() const;
};

struct PushPullOptions {
  ReduceOp op = ReduceOp::kSum;
  // Sizes of the dimensions, for comparison between the members. None: one dimension of all elements.
  std::vector<uint64_t> shape = {};
  // The time limit holds until all members have offered the name and the sum of its data begins, which may wait for
  // other data. It then takes as long as it needs, or until a member is lost.
  bool timeoutUntilMatched = false;
};

// InvalidArgument: not positive.
Status checkTimeout(Duration timeout);

}  // namespace treadle::group

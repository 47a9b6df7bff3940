#pragma once
// What ranks that have different numbers of batches do under DistributedDataParallel::join, and what each reports of
// itself meanwhile.

#include <optional>

namespace treadle {

// What happens from the first averaged pass on for which a rank has no batch left, and another one has. The same on all
// ranks.
enum class UnevenInputs {
  kContinue,     // training goes on until the last rank has no batch left
  kThrow,        // the pass throws StateError on all ranks, which names the ranks that have no batch left
  kStopAtFirst,  // the pass is dropped on all ranks: no averages, and `.grad` undefined; so all have made as many steps
};

}  // namespace treadle

namespace treadle::ddp {

const char* nameOf(UnevenInputs mode);

// What a rank reports of itself in each averaged pass.
struct JoinReport {
  std::optional<UnevenInputs> mode;  // of its guard of join(); nothing: it has none
  bool isDone = false;               // it has no batch left, and all are averaged
};

}  // namespace treadle::ddp

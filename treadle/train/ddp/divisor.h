#pragma once
// The number by which the sum of the ranks' gradients is divided, and how much each rank counts. Pure functions; any
// thread.

#include <vector>

#include "treadle/core/base/status.h"
#include "treadle/train/ddp/exact_channel.h"

namespace treadle {

// With all but kWorldSize, and with that too under join(), gradients that were averaged must be cleared before the next
// averaged pass, because a sum would count them once for each rank. `zero_grad()` makes `.grad` undefined; a context is
// used for one averaged pass. If they are there, also if they are 0, that pass throws StateError on the rank, and
// CancelledError on ranks that have cleared theirs. The same holds for other gradients whose weights are not known:
// those of passes before one in another place (`.grad`, or another context), those that a program has put in place of a
// parameter's, and those that are left where only some were cleared. It does not notice gradients that are changed in
// place, as `zero_grad(false)` does: their passes go on to count. Neither does it notice that the only gradient there
// is was replaced.
enum class Divisor {
  kWorldSize,    // the number of ranks, also of those without a batch
  kActiveRanks,  // the number of ranks that have had a batch since the last averaged pass
  kSum,          // 1
  kWeights,      // the sum of the ranks' weights (DistributedDataParallel::setWeight): for losses that are sums
};

}  // namespace treadle

namespace treadle::ddp {

const char* nameOf(Divisor divisor);

// How ranks count in one averaged pass, the same on all ranks.
struct Shares {
  double factor = 1;            // the mean over all ranks becomes their sum divided by D: W / D
  std::vector<double> ofRanks;  // the part of each in a weighted mean: weight / D; all 1 / W for kSum
  int authority = 0;            // the lowest rank that has had a batch; 0 if there is none
  bool isEmpty = false;         // D is 0; then factor is 1, and all ranks count alike
};

// FailedPrecondition: a weight is negative or not finite (it names the rank), which no rank of ours sends; or nothing
// can be divided by the sum of the weights, which is too large or too small for a double.
Result<Shares> sharesOf(Divisor divisor, const std::vector<RankReport>& reports);

}  // namespace treadle::ddp

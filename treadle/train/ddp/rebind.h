#pragma once
// What ranks report of themselves in DistributedDataParallel::rebind. A value.

#include <cstdint>

namespace treadle::ddp {

// What has to be the same on all ranks for their optimizers to be the same.
struct Progress {
  uint64_t averages = 0;  // passes that have gone well
  uint64_t renewals = 0;  // how many times rebind() has had the program renew its optimizers
  // Flags, without bytes in between that nobody has written.
  uint64_t hasTrainedAlone = 0;  // by LocalSgd: optimizers keep what other ranks do not know
  uint64_t isTorn = 0;           // DdpOptions::optimizerInBackward has stepped some parameters of a pass, and not all
  bool operator==(const Progress&) const = default;
};

}  // namespace treadle::ddp

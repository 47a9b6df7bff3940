#pragma once

#include "treadle/core/group/group.h"

namespace treadle::ddp {

// The group for all but averages of gradients: where it forces an algorithm, that cannot do all of it.
inline ProcessGroup byAnyAlgorithm(const ProcessGroup& group) {
  return group.withAlgorithm(group::Algorithm::kAutomatic);
}

}  // namespace treadle::ddp

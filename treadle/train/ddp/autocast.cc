#include "treadle/train/ddp/autocast.h"

#include <ATen/autocast_mode.h>

#include <string>

#include "treadle/core/base/error.h"

namespace treadle {

Autocast::Autocast(AutocastOptions options) {
  if (options.dtype != at::kBFloat16 && options.dtype != at::kHalf)
    raise(invalidArgument("Autocast computes in bfloat16 or float16, not in " +
                          std::string(c10::toString(options.dtype))));
  at::autocast::increment_nesting();
  bridge::AutocastState{options.dtype, options.enabled, options.cacheWeights}.apply();
}

Autocast::~Autocast() {
  if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  before_.apply();
}

}  // namespace treadle

#include "treadle/train/ddp/autocast.h"

#include <ATen/autocast_mode.h>

#include <string>

#include "treadle/core/base/error.h"

namespace treadle {
namespace {

AutocastOptions stateOfThread() {
  return {at::autocast::get_autocast_dtype(at::kCPU), at::autocast::is_autocast_enabled(at::kCPU),
          at::autocast::is_autocast_cache_enabled()};
}

void setStateOfThread(const AutocastOptions& options) {
  // libtorch finds kept casts by their parameter alone, and would use those of the other type.
  if (options.dtype != at::autocast::get_autocast_dtype(at::kCPU)) at::autocast::clear_cache();
  at::autocast::set_autocast_dtype(at::kCPU, options.dtype);
  at::autocast::set_autocast_enabled(at::kCPU, options.enabled);
  at::autocast::set_autocast_cache_enabled(options.cacheWeights);
}

}  // namespace

Autocast::Autocast(AutocastOptions options) : before_(stateOfThread()) {
  if (options.dtype != at::kBFloat16 && options.dtype != at::kHalf)
    raise(invalidArgument("Autocast computes in bfloat16 or float16, not in " +
                          std::string(c10::toString(options.dtype))));
  at::autocast::increment_nesting();
  setStateOfThread(options);
}

Autocast::~Autocast() {
  if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  setStateOfThread(before_);
}

}  // namespace treadle

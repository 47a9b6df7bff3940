#include "treadle/tensor/bridge/autocast_state.h"

#include <ATen/autocast_mode.h>

namespace treadle::bridge {

AutocastState AutocastState::ofThread() {
  return {at::autocast::get_autocast_dtype(at::kCPU), at::autocast::is_autocast_enabled(at::kCPU),
          at::autocast::is_autocast_cache_enabled()};
}

void AutocastState::apply() const {
  if (dtype != at::autocast::get_autocast_dtype(at::kCPU)) at::autocast::clear_cache();
  at::autocast::set_autocast_dtype(at::kCPU, dtype);
  at::autocast::set_autocast_enabled(at::kCPU, isEnabled);
  at::autocast::set_autocast_cache_enabled(keepsCasts);
}

}  // namespace treadle::bridge

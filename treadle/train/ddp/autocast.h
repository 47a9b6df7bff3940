#pragma once
// Mixed precision in a forward pass: while an Autocast lives, libtorch runs the operators of its thread that gain by it
// (matrix products, convolutions) in a 16-bit type, and those that need range or precision (losses, norms) in float32.
// It is torch.autocast for CPU tensors (P. Micikevicius et al., "Mixed Precision Training", 2018).
//
// In training with a GradScaler, the loss of each of 50 steps of a small network differs from that of one process in
// float64 by at most u times the first loss, where u = 2^-11 for float16, 2^-8 for bfloat16: 0.05% of it, and 0.4%
// (tests/train/ddp/losses_test.cc).

#include <c10/core/ScalarType.h>

#include "treadle/tensor/bridge/autocast_state.h"

namespace treadle {

struct AutocastOptions {
  c10::ScalarType dtype = c10::ScalarType::BFloat16;  // or Half
  bool enabled = true;                                // false: float32 in a part of a forward pass
  // Casts of parameters are kept until the outermost guard ends, or one begins or ends that changes the dtype.
  bool cacheWeights = true;
};

// Use it for the forward pass and the loss; end it before backward, which runs in the types of the forward pass, and
// before an optimizer steps: kept casts would be those of the old parameters. Functions that are called on other
// workers do not see it: make one there. The destructor restores the state that was before. Guards nest; destroy each
// on the thread that made it, the last one first. Threads of a process that compute with the same parameters use the
// same dtype, because libtorch keeps one cast for each parameter.
class [[nodiscard]] Autocast {
 public:
  // ArgumentError for a dtype other than bfloat16 and float16.
  explicit Autocast(AutocastOptions options = {});
  explicit Autocast(c10::ScalarType dtype) : Autocast(AutocastOptions{.dtype = dtype}) {}
  ~Autocast();
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  const bridge::AutocastState before_ = bridge::AutocastState::ofThread();
};

}  // namespace treadle

#pragma once
// Mixed precision of a thread, for CPU tensors, as libtorch keeps it.

#include <c10/core/ScalarType.h>

namespace treadle::bridge {

struct AutocastState {
  static AutocastState ofThread();
  // Casts of parameters that libtorch has kept go where the type changes: it finds them by their parameter alone, and
  // would use those of the other type.
  void apply() const;

  c10::ScalarType dtype = c10::ScalarType::BFloat16;
  bool isEnabled = false;
  bool keepsCasts = true;
};

}  // namespace treadle::bridge

#include "examples/char_gpt/learning_rate.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace char_gpt {

double learningRateAt(int64_t step, int64_t steps, double peak) {
  const int64_t warmUp = std::max<int64_t>(1, steps / 10);
  if (step < warmUp) return peak * static_cast<double>(step + 1) / static_cast<double>(warmUp);
  const double done = static_cast<double>(step + 1 - warmUp) / static_cast<double>(steps - warmUp);
  const double end = peak / 10;
  return end + (peak - end) * 0.5 * (1 + std::cos(std::numbers::pi * done));
}

}  // namespace char_gpt

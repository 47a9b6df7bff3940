#include "examples/char_gpt/time_left.h"

#include <algorithm>

namespace char_gpt {
namespace {

int64_t tenthOf(int64_t steps) { return std::max<int64_t>(1, steps / 10); }

}  // namespace

bool isLineDue(int64_t done, int64_t steps) { return done == 1 || done % tenthOf(steps) == 0 || done == steps; }

int64_t linesAfter(int64_t done, int64_t steps) {
  if (done == steps) return 0;
  const int64_t tenth = tenthOf(steps), last = steps % tenth == 0 ? 0 : 1;
  return steps / tenth - done / tenth + last;
}

double secondsLeft(int64_t done, int64_t steps, double perStep, double perLine) {
  return perStep * static_cast<double>(steps - done) + perLine * static_cast<double>(linesAfter(done, steps));
}

}  // namespace char_gpt

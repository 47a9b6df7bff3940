#pragma once
// When a training shows a line, and how long the rest of it takes. Any thread.

#include <cstdint>

namespace char_gpt {

// Whether a line is due after `done` steps: after the first step, each tenth of the steps and the last.
bool isLineDue(int64_t done, int64_t steps);

// How many lines are due after those of step `done`, which is 1 to `steps`.
int64_t linesAfter(int64_t done, int64_t steps);

// Seconds from step `done` and its line to the end of the training. A line takes much longer than a step: it needs the
// validation loss. So both have a time of their own, in seconds.
double secondsLeft(int64_t done, int64_t steps, double perStep, double perLine);

}  // namespace char_gpt

#pragma once
// The learning rate of each step. Any thread.

#include <cstdint>

namespace char_gpt {

// The rate of step `step` of `steps`, from 0. It rises in equal parts over the first tenth of the steps and reaches
// `peak` there (P. Goyal et al., "Accurate, Large Minibatch SGD", 2017, section 2.2); from there it falls with half a
// cosine to a tenth of that (I. Loshchilov, F. Hutter, "SGDR", 2017, equation 5, without restarts).
double learningRateAt(int64_t step, int64_t steps, double peak);

}  // namespace char_gpt

#pragma once
// What a parameter server would do with a gradient in place of adding it (the figure 9a of the BytePS paper): a step of
// an optimizer over plain memory, as fast as one core can. Each reads a gradient once; vectorised by the compiler.

#include <cstddef>

namespace bench {

void stepSgd(float* weights, const float* gradient, size_t count);
void stepMomentum(float* weights, float* momentum, const float* gradient, size_t count);
void stepRmsProp(float* weights, float* meanSquare, const float* gradient, size_t count);
// Kingma and Ba 2015, without the correction of the first steps, which is one factor for all elements.
void stepAdam(float* weights, float* mean, float* meanSquare, const float* gradient, size_t count);

}  // namespace bench

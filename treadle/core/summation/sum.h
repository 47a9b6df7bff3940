#pragma once
// The sum of the same elements of several workers, as a server computes it. Pure functions; any thread.

#include <cstddef>
#include <span>
#include <string_view>

#include "treadle/core/group/data_type.h"

namespace treadle::summation {

// In the order in which they are added.
using Addends = std::span<const std::byte* const>;

// result[i] = addends[0][i] + addends[1][i] + ..., one after the other. There is at least one addend; the result may be
// one of them. 16-bit floats are added as float32 and rounded once, to nearest, ties to even; integers wrap around. The
// bits do not depend on the processor. All are aligned for the type, which has a sum (group::checkReduces).
void sum(group::DataType type, Addends addends, size_t count, std::byte* result);

// The instructions that `sum` uses here: "AVX-512", "AVX2" or "portable".
std::string_view instructionsOfSums();

}  // namespace treadle::summation

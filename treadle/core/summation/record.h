#pragma once
// Keeps the times of a worker's part in a summation service in a file, for `treadle plan --explain`.

#include <string>

#include "treadle/core/summation/times.h"

namespace treadle::summation {

// In a file of its own for each service and machine, whose name ends with kTimesSuffix. Makes the folder if there is
// none; logs a warning where it cannot write.
void record(const SummationTimes& times, const std::string& folder);
// Removes what an earlier run has left of the same service and machine.
void removeRecord(const SummationTimes& times, const std::string& folder);

inline constexpr std::string_view kTimesSuffix = ".summation.txt";

}  // namespace treadle::summation

#pragma once
// `treadle doctor`: joins a job as one of its workers; rank 0 has every two of them try every channel between them
// (probe.h) and tells what it found. Everything is bounded by one time limit; a worker that is lost meanwhile becomes a
// finding. One thread.

#include "treadle/cli/findings.h"
#include "treadle/core/base/clock.h"
#include "treadle/core/worker/worker.h"

namespace treadle::cli {

struct DoctorOptions {
  Duration timeout = std::chrono::seconds(10);
};

// What doctors offer each other, by these names.
Functions doctorFunctions();
inline constexpr const char* kTellFunction = "treadle.doctor.tell";

// What a worker tells of itself.
struct Told {
  std::vector<std::string> channels;  // that it may use
  std::vector<Fact> facts;
};
TREADLE_FIELDS(Told, channels, facts)

// As the worker that `launch` says: rank 0 returns what was found, the others nothing but `workers` and, when they did
// not get that far, `trouble`.
Findings examine(const Launch& launch, const DoctorOptions& options);

}  // namespace treadle::cli

#pragma once
// `treadle run`: one job on this machine, from the first fork to the last byte of output. See
// docs/rooms/cli.md.

#include "treadle/cli/job.h"

namespace treadle::cli {

// Runs the job and returns the command's exit code. For a program's main thread: it takes the signals of the
// process and adopts the orphans among its descendants.
int runJob(const RunOptions& options);

// The exit code for a program that cannot be run.
int exitCodeFor(const Status& status);

}  // namespace treadle::cli

#pragma once
// The job's secret as a worker is given it: by a descriptor that it inherits, in a file, or as an environment variable.
// Never on a command line, which everybody on a machine reads. Read once, when a program starts.

#include <string>

#include "treadle/core/base/status.h"

namespace treadle::cluster {

// The descriptor, as "7", or "7:88231" with the inode of the file, so that a number that came to mean something else is
// told from it. A file's bytes are read from its beginning, whoever has read it before.
inline constexpr const char* kJobKeyDescriptor = "TREADLE_JOB_KEY_FD";
inline constexpr const char* kJobKeyFile = "TREADLE_JOB_KEY_FILE";
inline constexpr const char* kJobKey = "TREADLE_JOB_KEY";

// What the first of these that is set gives, without a newline at its end; empty without any. InvalidArgument naming
// the variable when it cannot be read.
Result<std::string> readJobKey();

}  // namespace treadle::cluster

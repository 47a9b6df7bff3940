#pragma once
// One line per event on standard error, with the time and the worker's name. The first place that detects a failure
// logs it; everybody else adds context to the status they pass on. Any thread may log. The level is read from the
// environment variable TREADLE_LOG (debug, info, warn, error, off) the first time; the default is warn.

#include <string_view>

namespace treadle {

enum class LogLevel { kDebug, kInfo, kWarn, kError, kOff };

// For the whole process, over what TREADLE_LOG says.
void setLogLevel(LogLevel level);

// Writes the line at once; `worker` may be empty before the worker has a name. Never give it a key.
void logLine(LogLevel level, std::string_view worker, std::string_view message);

inline void logDebug(std::string_view worker, std::string_view message) { logLine(LogLevel::kDebug, worker, message); }
inline void logInfo(std::string_view worker, std::string_view message) { logLine(LogLevel::kInfo, worker, message); }
inline void logWarn(std::string_view worker, std::string_view message) { logLine(LogLevel::kWarn, worker, message); }

}  // namespace treadle

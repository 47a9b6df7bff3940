#include "treadle/core/base/log.h"

#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <array>
#include <cctype>
#include <cstdio>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "treadle/core/base/environment.h"

namespace treadle {
namespace {

spdlog::level::level_enum levelOf(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug: return spdlog::level::debug;
    case LogLevel::kInfo: return spdlog::level::info;
    case LogLevel::kWarn: return spdlog::level::warn;
    case LogLevel::kError: return spdlog::level::err;
    case LogLevel::kOff: break;
  }
  return spdlog::level::off;
}

spdlog::level::level_enum levelFromEnvironment() {
  std::string text = base::environment("TREADLE_LOG").value_or("warn");
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  constexpr std::array<std::pair<std::string_view, LogLevel>, 7> kNames = {{{"debug", LogLevel::kDebug},
                                                                            {"info", LogLevel::kInfo},
                                                                            {"warn", LogLevel::kWarn},
                                                                            {"warning", LogLevel::kWarn},
                                                                            {"error", LogLevel::kError},
                                                                            {"err", LogLevel::kError},
                                                                            {"off", LogLevel::kOff}}};
  for (const auto& [name, level] : kNames)
    if (text == name) return levelOf(level);
  std::fprintf(stderr, "TREADLE_LOG is '%s'; it can be debug, info, warn, error or off, and is taken for warn\n",
               text.c_str());
  return spdlog::level::warn;
}

// A logger of our own, not spdlog's global registry: a program that uses spdlog itself keeps its own settings.
spdlog::logger& logger() {
  static spdlog::logger instance = [] {
    spdlog::logger made("treadle", std::make_shared<spdlog::sinks::stderr_sink_mt>());
    made.set_pattern("[%H:%M:%S.%e] %l %v");
    made.set_level(levelFromEnvironment());
    return made;
  }();
  return instance;
}

}  // namespace

void setLogLevel(LogLevel level) { logger().set_level(levelOf(level)); }

void logLine(LogLevel level, std::string_view worker, std::string_view message) {
  logger().log(levelOf(level), "{}{}{}", worker, worker.empty() ? "" : ": ", message);
}

}  // namespace treadle

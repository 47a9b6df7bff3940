#include "treadle/core/summation/times.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <utility>

namespace treadle::summation {
namespace {

constexpr std::string_view kFirstLine = "times of a summation service, 1";

constexpr std::string_view kLastLine = "end";

bool isControl(char one) { return static_cast<unsigned char>(one) < 0x20 || one == 0x7f; }

std::string lineOf(std::string_view key, std::string value) {
  std::ranges::replace_if(value, isControl, ' ');
  return std::string(key) + " " + value + "\n";
}

template <class Number>
bool readNumber(std::string_view text, Number* number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *number);
  return error == std::errc() && end == text.data() + text.size();
}

bool readDuration(std::string_view text, Duration* duration) {
  int64_t count = 0;
  if (!readNumber(text, &count) || count < 0 || count > INT64_MAX / 4) return false;
  *duration = Duration(count);
  return true;
}

// False: there is no such line.
bool readLine(std::string_view key, std::string_view value, SummationTimes* times) {
  if (key == "service") return times->service = value, true;
  if (key == "worker") return times->worker = value, true;
  if (key == "of-worker") return times->workers.emplace_back(value), true;
  if (key == "of-server") return times->servers.emplace_back(value), true;
  if (key == "asynchronous") return (times->isAsynchronous = value == "1"), value == "0" || value == "1";
  for (const auto& [name, number] : {std::pair<std::string_view, uint64_t*>{"number", &times->number},
                                     {"sums", &times->sums},
                                     {"bytes", &times->bytes},
                                     {"sent-bytes", &times->bytesSent},
                                     {"received-bytes", &times->bytesReceived}})
    if (key == name) return readNumber(value, number);
  for (const auto& [name, duration] : {std::pair<std::string_view, Duration*>{"waiting-ns", &times->waiting},
                                       {"moving-ns", &times->moving},
                                       {"computing-ns", &times->computing}})
    if (key == name) return readDuration(value, duration);
  return false;
}

}  // namespace

std::string textOf(const SummationTimes& times) {
  std::string text = std::string(kFirstLine) + "\n";
  text += lineOf("service", times.service) + lineOf("worker", times.worker);
  for (const std::string& worker : times.workers) text += lineOf("of-worker", worker);
  for (const std::string& server : times.servers) text += lineOf("of-server", server);
  for (const auto& [key, number] : {std::pair<std::string_view, uint64_t>{"number", times.number},
                                    {"asynchronous", times.isAsynchronous ? 1 : 0},
                                    {"sums", times.sums},
                                    {"bytes", times.bytes},
                                    {"sent-bytes", times.bytesSent},
                                    {"received-bytes", times.bytesReceived},
                                    {"waiting-ns", static_cast<uint64_t>(times.waiting.count())},
                                    {"moving-ns", static_cast<uint64_t>(times.moving.count())},
                                    {"computing-ns", static_cast<uint64_t>(times.computing.count())}})
    text += lineOf(key, std::to_string(number));
  return text + std::string(kLastLine) + "\n";
}

Result<SummationTimes> parseTimes(std::string_view text) {
  SummationTimes times;
  std::string_view line;
  for (size_t number = 1; !text.empty() && line != kLastLine; ++number) {
    line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    const size_t space = std::min(line.find(' '), line.size());
    const std::string_view value = line.substr(std::min(space + 1, line.size()));
    const bool isRead = number == 1         ? line == kFirstLine
                        : line == kLastLine ? text.empty()
                                            : readLine(line.substr(0, space), value, &times);
    if (!isRead || std::ranges::any_of(line, isControl))
      return invalidArgument("line " + std::to_string(number) + " is none of the times of a summation service");
  }
  if (line != kLastLine) return invalidArgument("the times of a summation service are cut off");
  if (times.workers.empty()) return invalidArgument("the summation service has no worker");
  const auto isIn = [&](const std::vector<std::string>& names) { return std::ranges::count(names, times.worker) == 1; };
  if (!isIn(times.workers) && !isIn(times.servers))
    return invalidArgument("the times are of '" + times.worker + "', which has no part in the summation service");
  return times;
}

}  // namespace treadle::summation

#include "treadle/core/link/strangers.h"

#include <algorithm>

namespace treadle::link {
namespace {

constexpr Duration kQuiet = std::chrono::minutes(1);

}  // namespace

void Strangers::Allowance::fill(double perSecond, double most, TimePoint now) {
  left = std::min(most, left + perSecond * std::chrono::duration<double>(now - at).count());
  at = now;
}

Duration Strangers::waitOf(const std::string& source, TimePoint now) {
  auto known = sources_.find(source);
  if (known == sources_.end()) return {};
  known->second.tries.fill(kPerSecond, kAtOnce, now);
  std::chrono::duration<double> wait(std::max(0.0, -known->second.tries.left / kPerSecond));
  return std::chrono::duration_cast<Duration>(wait);
}

Strangers::Source& Strangers::find(const std::string& source, TimePoint now) {
  if (auto known = sources_.find(source); known != sources_.end()) return known->second;
  if (sources_.size() == kSources)
    sources_.erase(std::min_element(sources_.begin(), sources_.end(), [](const auto& one, const auto& other) {
      return one.second.tries.at < other.second.tries.at;
    }));
  Source& fresh = sources_[source];
  fresh.tries.at = now;
  return fresh;
}

std::optional<std::string> Strangers::refused(const std::string& source, const std::string& why, TimePoint now) {
  Source& one = find(source, now);
  one.tries.fill(kPerSecond, kAtOnce, now);
  one.tries.left = std::max<double>(one.tries.left - 1, -kMostOwed);
  lines_.fill(kLinesPerMinute / 60.0, kLinesPerMinute, now);
  if ((one.logged && now - *one.logged < kQuiet) || lines_.left < 1) {
    ++one.unlogged;
    return std::nullopt;
  }
  lines_.left -= 1;
  std::string line = "a connection from " + source + " was refused: " + why;
  line += one.logged ? "; and " + std::to_string(one.unlogged) + " more since the last such line"
                     : "; others from there will be counted rather than logged";
  one.logged = now;
  one.unlogged = 0;
  return line;
}

}  // namespace treadle::link

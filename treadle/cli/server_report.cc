#include "treadle/cli/server_report.h"

#include <array>
#include <utility>

#include "treadle/cli/numbers.h"

namespace treadle::cli {
namespace {

// With three digits: 118 MB, 1.20 GB.
std::string decimalBytes(double bytes) {
  constexpr std::array kUnits = {"B", "kB", "MB", "GB", "TB"};
  size_t unit = 0;
  for (; bytes >= 999.5 && unit + 1 < kUnits.size(); ++unit) bytes /= 1000;
  const int digits = unit == 0 || bytes >= 99.95 ? 0 : bytes >= 9.995 ? 1 : 2;
  return fixed(bytes, digits) + " " + kUnits[unit];
}

bool hasMoved(const SummationCounters& before, const SummationCounters& now) {
  return now.bytesReceived != before.bytesReceived || now.bytesSent != before.bytesSent || now.sums != before.sums;
}

}  // namespace

std::string textOf(const SummationCounters& before, const SummationCounters& now, Duration between) {
  const double seconds = std::chrono::duration<double>(between).count();
  const auto perSecond = [&](uint64_t from, uint64_t to) { return static_cast<double>(to - from) / seconds; };
  return countText(now.services, "service") + " with " + countText(now.clients, "worker") + ": " +
         decimalBytes(perSecond(before.bytesReceived, now.bytesReceived)) + "/s in, " +
         decimalBytes(perSecond(before.bytesSent, now.bytesSent)) + "/s out, " +
         fixed(perSecond(before.sums, now.sums), 1) + " sums/s";
}

std::string totalOf(const SummationCounters& counters) {
  return decimalBytes(static_cast<double>(counters.bytesReceived)) + " in, " +
         decimalBytes(static_cast<double>(counters.bytesSent)) + " out, " + countText(counters.sums, "sum");
}

ServerReport::ServerReport(Duration interval, std::function<SummationCounters()> read,
                           std::function<void(const std::string& line)> write)
    : interval_(interval), read_(std::move(read)), write_(std::move(write)) {
  if (interval != kNoTimeout) thread_ = std::thread([this] { run(); });
}

ServerReport::~ServerReport() {
  {
    MutexLock lock(mutex_);
    ends_ = true;
  }
  changed_.notifyAll();
  if (thread_.joinable()) thread_.join();
}

void ServerReport::run() {
  SummationCounters before = read_();
  TimePoint at = Clock::now();
  MutexLock lock(mutex_);
  while (!ends_) {
    const TimePoint next = at + interval_;
    if (changed_.waitUntil(lock, next) || Clock::now() < next) continue;
    const SummationCounters now = read_();
    const TimePoint reached = Clock::now();
    if (hasMoved(before, now)) write_(textOf(before, now, reached - at));
    before = now;
    at = reached;
  }
}

}  // namespace treadle::cli

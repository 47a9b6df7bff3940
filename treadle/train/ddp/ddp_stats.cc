#include "treadle/train/ddp/ddp_stats.h"

#include <algorithm>
#include <cstdio>

#include "treadle/core/base/listed.h"

namespace treadle {
namespace {

constexpr double kLittle = 0.1;        // of a step: not worth a change
constexpr size_t kNamedUnused = 8;     // parameters in one line
constexpr size_t kDescribedRows = 32;  // of buckets

// Means of the recent steps.
struct RecentMeans {
  DdpTimes times;
  Duration communication{}, waitForLatest{};
  size_t latestRank = 0;  // most often
  size_t timesLatest = 0;
};

RecentMeans meansOf(const std::vector<DdpStep>& steps) {
  RecentMeans mean;
  std::vector<size_t> latest;
  for (const DdpStep& step : steps) {
    mean.times += step.times;
    mean.communication += step.communication;
    mean.waitForLatest += step.waitForLatest;
    const auto rank = static_cast<size_t>(step.latestRank);
    if (rank >= latest.size()) latest.resize(rank + 1);
    ++latest[rank];
  }
  const auto most = std::max_element(latest.begin(), latest.end());
  mean.latestRank = static_cast<size_t>(most - latest.begin());
  mean.timesLatest = *most;
  const auto count = static_cast<Duration::rep>(steps.size());
  for (Duration* part : {&mean.times.outside, &mean.times.compute, &mean.times.copies, &mean.times.exposed,
                         &mean.communication, &mean.waitForLatest})
    *part /= count;
  return mean;
}

double shareOfStep(Duration part, Duration whole) {
  return whole > Duration::zero() ? static_cast<double>(part.count()) / static_cast<double>(whole.count()) : 0;
}

std::string inPercent(double share) {
  char text[16];
  std::snprintf(text, sizeof text, "%.0f%%", 100 * share);
  return text;
}

std::string rankInText(const DdpStats& stats, size_t rank) {
  const std::string number = "rank " + std::to_string(rank);
  return rank < stats.members.size() ? number + " ('" + stats.members[rank] + "')" : number;
}

std::string partRow(const char* name, Duration part, Duration step, const char* what) {
  char row[128];
  std::snprintf(row, sizeof row, "  %-8s %9s %5s  %s\n", name, toText(part).c_str(),
                inPercent(shareOfStep(part, step)).c_str(), what);
  return row;
}

std::string partRows(const DdpTimes& times) {
  const Duration step = times.step();
  return partRow("outside", times.outside, step, "the step of the optimizer, data, forward") +
         partRow("compute", times.compute, step, "backward") +
         partRow("copies", times.copies, step, "into buckets and out of them, hooks") +
         partRow("exposed", times.exposed, step, "waits for other ranks and for the network");
}

std::string countsOf(const DdpStats& stats) {
  return "passes: " + std::to_string(stats.averagedPasses) + " averaged, " + std::to_string(stats.skippedPasses) +
         " of them without a batch here; " + std::to_string(stats.failedPasses) + " failed; " +
         std::to_string(stats.localPasses) + " under noSync()\n";
}

std::string unusedOf(const DdpStats& stats) {
  if (stats.unusedParameters.empty()) return "";
  return "parameters without a gradient on any rank: " +
         listed(stats.unusedParameters, kNamedUnused, [](const std::string& name) { return "'" + name + "'"; }) + "\n";
}

std::string bucketsOf(const DdpStep& step) {
  std::string text = "buckets of the last step, from its first gradient:\n";
  for (size_t i = 0; i < std::min(step.buckets.size(), kDescribedRows); ++i) {
    const DdpBucketTimes& bucket = step.buckets[i];
    char row[160];
    std::snprintf(row, sizeof row, "  %3zu  %11zu bytes  ready %9s  launched %9s  done %9s\n", i, bucket.bytes,
                  toText(bucket.ready).c_str(), toText(bucket.launched).c_str(), toText(bucket.done).c_str());
    text += row;
  }
  if (step.buckets.size() > kDescribedRows)
    text += "  and " + std::to_string(step.buckets.size() - kDescribedRows) + " more\n";
  return text;
}

std::string adviceOf(const DdpStats& stats, const RecentMeans& mean) {
  const double exposed = shareOfStep(mean.times.exposed, mean.times.step());
  const std::string text = "exposed " + inPercent(exposed) + " of the step: ";
  if (exposed < kLittle) return text + "a faster exchange would gain little\n";
  if (2 * mean.waitForLatest < mean.times.exposed)
    return text +
           "most of it is the exchange itself; send less (CastHook, PowerSgdHook, TopKHook) or less often (noSync())\n";
  if (2 * mean.timesLatest < stats.recent.size())
    return text +
           "most of it is waiting for slower ranks, which change from step to step; give ranks batches that take as "
           "long\n";
  return text + "most of it is waiting for slower ranks; find out why " + rankInText(stats, mean.latestRank) +
         " is slow, or give it less to do\n";
}

}  // namespace

DdpTimes& DdpTimes::operator+=(const DdpTimes& other) {
  outside += other.outside;
  compute += other.compute;
  copies += other.copies;
  exposed += other.exposed;
  return *this;
}

std::string describe(const DdpStats& stats) {
  const std::string title = "DistributedDataParallel on " + rankInText(stats, static_cast<size_t>(stats.rank)) +
                            " of " + std::to_string(stats.members.size());
  if (stats.recent.empty()) return title + ": no pass has been averaged yet\n" + countsOf(stats);
  const RecentMeans mean = meansOf(stats.recent);
  const std::string steps = std::to_string(stats.recent.size());
  return title + ": the mean of " + steps + " steps is " + toText(mean.times.step()) + "\n" + partRows(mean.times) +
         "communication takes " + toText(mean.communication) + " of a step, from its first bucket to its last\n" +
         rankInText(stats, mean.latestRank) + " was the latest in " + std::to_string(mean.timesLatest) + " of " +
         steps + " steps; this rank waited for the latest " + toText(mean.waitForLatest) + " in each\n" +
         "averages by " + stats.averagedBy + "\n" + countsOf(stats) + unusedOf(stats) + bucketsOf(stats.recent.back()) +
         adviceOf(stats, mean);
}

}  // namespace treadle

#include "treadle/cli/explanation.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "treadle/cli/numbers.h"
#include "treadle/core/summation/record.h"
#include "treadle/core/summation/shares.h"

namespace treadle::cli {
namespace {

using summation::Bandwidths;

constexpr double kLarge = 0.2;          // a part of the time that is worth a line of advice
constexpr double kFarOff = 1.15;        // of the least time, likewise
constexpr size_t kMostBytes = 1 << 20;  // of a file

double secondsOf(Duration duration) { return std::chrono::duration<double>(duration).count(); }

Result<SummationTimes> readFile(const std::filesystem::path& path) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) return invalidArgument(path.string() + " is no file");
  std::ifstream file(path, std::ios::binary);
  std::string text(kMostBytes, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(file.gcount()));
  if (text.empty() || !file.eof()) return invalidArgument(path.string() + " cannot be read, or is too large");
  Result<SummationTimes> times = summation::parseTimes(text);
  if (!times.ok()) return times.status().withContext(path.string());
  return times;
}

// Of a machine in its service.
size_t placeOf(const SummationTimes& times) {
  const auto found = std::ranges::find(times.workers, times.worker);
  if (found != times.workers.end()) return static_cast<size_t>(found - times.workers.begin());
  const auto server = std::ranges::find(times.servers, times.worker);
  return times.workers.size() + static_cast<size_t>(server - times.servers.begin());
}

bool isOfSameService(const SummationTimes& a, const SummationTimes& b) {
  return a.service == b.service && a.workers == b.workers && a.servers == b.servers &&
         a.isAsynchronous == b.isAsynchronous && a.worker != b.worker;
}

bool isWorker(const SummationTimes& times) { return placeOf(times) < times.workers.size(); }

std::vector<SummationTimes> workersOf(const ServiceRun& run) {
  std::vector<SummationTimes> workers;
  std::ranges::copy_if(run, std::back_inserter(workers), isWorker);
  return workers;
}

// Whose sums took longest; none where no worker's times are known, or it has summed nothing.
std::optional<SummationTimes> slowestOf(const ServiceRun& run) {
  const std::vector<SummationTimes> workers = workersOf(run);
  const auto found = std::ranges::max_element(workers, {}, &SummationTimes::underWay);
  if (found == workers.end() || found->underWay() == Duration::zero()) return {};
  return *found;
}

double partOf(Duration some, const SummationTimes& all) {
  return all.underWay() == Duration::zero() ? 0 : secondsOf(some) / secondsOf(all.underWay());
}

std::string timeAndPart(Duration some, const SummationTimes& all) {
  return padded(timeText(secondsOf(some) * 1e6), 11) + padded(fixed(100 * partOf(some, all), 0) + "%", 6);
}

// While bytes could move.
std::string rateOf(uint64_t bytes, const SummationTimes& times) {
  const double seconds = secondsOf(times.moving + times.computing);
  return seconds == 0 ? "-" : fixed(static_cast<double>(bytes) / seconds / 1e6, 1) + " MB/s";
}

std::string rowOf(const SummationTimes& times) {
  return "   " + padded(times.worker + (isWorker(times) ? "" : " (server)"), 19) + " " +
         padded(timeText(secondsOf(times.underWay()) * 1e6), 11) + timeAndPart(times.waiting, times) +
         timeAndPart(times.moving, times) + timeAndPart(times.computing, times) +
         padded(rateOf(times.bytesSent, times), 11) + " " + rateOf(times.bytesReceived, times) + "\n";
}

std::string titleOf(const ServiceRun& run) {
  const SummationTimes& any = run.front();
  std::string title = std::string(any.isAsynchronous ? "asynchronous " : "") + "summation service '" + any.service +
                      "' of " + countText(any.workers.size(), "worker") + " with " +
                      countText(any.servers.size(), "server");
  if (workersOf(run).empty()) return title;
  const auto sums = std::ranges::max_element(run, {}, &SummationTimes::sums);
  return title + ": " + countText(sums->sums, "sum") + " of " + bytesText(static_cast<double>(sums->bytes)) + " in all";
}

// Of all sums of the machine. None: the bandwidths are not known, or there is no such time.
std::optional<double> leastOf(const SummationTimes& times, const std::optional<Bandwidths>& bandwidths) {
  if (!bandwidths || times.isAsynchronous) return {};
  const double least = leastSeconds(*bandwidths, static_cast<double>(times.bytes));
  return least > 0 ? std::optional(least) : std::nullopt;
}

// Who begins its sums last waits far less than the others. None: nobody does, or not all workers are known.
std::optional<std::string> lateWorker(const ServiceRun& run, const SummationTimes& slowest) {
  const std::vector<SummationTimes> workers = workersOf(run);
  if (workers.size() != slowest.workers.size() || workers.size() < 2) return {};
  const SummationTimes& least = *std::ranges::min_element(workers, {}, &SummationTimes::waiting);
  return least.waiting < slowest.waiting / 2 ? std::optional(least.worker) : std::nullopt;
}

std::string waitingAdvice(const ServiceRun& run, const SummationTimes& slowest) {
  if (const auto late = lateWorker(run, slowest))
    return "waiting: " + *late +
           " begins its sums later than the others, which wait for it: look at what it computes "
           "before them, and at its part of the work";
  return "waiting: workers are late in turns, or sums are so small that to announce them takes the time";
}

std::string boundAdvice(const SummationTimes& slowest, double least) {
  const double moving = secondsOf(slowest.moving + slowest.computing) / least;
  const std::string took = "moving and computing took " + fixed(moving, 2) + " times the least time";
  if (moving > kFarOff)
    return took +
           ": the network carried less than --bandwidth says, others used it, or parts were too small to keep it "
           "busy";
  if (moving < 1 / kFarOff)
    return took + ": the network carries more than --bandwidth says, or some of the machines share a host";
  return took + ", so the network is at its limit; `treadle plan --workers " + std::to_string(slowest.workers.size()) +
         " --servers N` says what more servers gain";
}

std::vector<std::string> adviceFor(const ServiceRun& run, const std::optional<Bandwidths>& bandwidths) {
  if (workersOf(run).empty()) return {"the times of its workers are not here"};
  const std::optional<SummationTimes> slowest = slowestOf(run);
  if (!slowest) return {"no worker has summed anything"};
  std::vector<std::string> advice;
  if (partOf(slowest->waiting, *slowest) > kLarge) advice.push_back(waitingAdvice(run, *slowest));
  const SummationTimes& busiest = *std::ranges::max_element(run, {}, &SummationTimes::computing);
  if (partOf(busiest.computing, *slowest) > kLarge)
    advice.push_back("computing: the thread of " + busiest.worker +
                     " packs, adds, reads or writes for long; a core of its own helps, and compression costs more than "
                     "it gains on a fast network");
  if (const auto least = leastOf(*slowest, bandwidths)) {
    advice.push_back(boundAdvice(*slowest, *least));
  } else if (!slowest->isAsynchronous && slowest->workers.size() > 1) {
    advice.push_back("--bandwidth (and --server-bandwidth) compares this with the least time that the network allows");
  }
  return advice;
}

nlohmann::ordered_json jsonOf(const SummationTimes& times) {
  return {{"machine", times.worker},
          {"role", isWorker(times) ? "worker" : "server"},
          {"sums", times.sums},
          {"bytes", times.bytes},
          {"bytes_sent", times.bytesSent},
          {"bytes_received", times.bytesReceived},
          {"waiting_seconds", secondsOf(times.waiting)},
          {"moving_seconds", secondsOf(times.moving)},
          {"computing_seconds", secondsOf(times.computing)}};
}

}  // namespace

Result<std::vector<ServiceRun>> readRuns(const std::string& folder) {
  std::error_code error;
  std::map<uint64_t, ServiceRun> runs;
  for (std::filesystem::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    if (!at->path().string().ends_with(summation::kTimesSuffix)) continue;
    Result<SummationTimes> times = readFile(at->path());
    if (!times.ok()) return std::move(times).status();
    ServiceRun& run = runs[times->number];
    if (!run.empty() && !isOfSameService(run.front(), *times))
      return invalidArgument(at->path().string() +
                             " is of another run than other files there; record each run in a "
                             "folder of its own");
    run.push_back(std::move(*times));
  }
  if (error) return invalidArgument(folder + " cannot be read: " + error.message());
  if (runs.empty())
    return invalidArgument(folder + " has no times of summation services; a run with TREADLE_RECORD=" + folder +
                           " in the environment of its workers and servers writes them there");
  std::vector<ServiceRun> all;
  for (auto& [number, run] : runs) {
    std::ranges::sort(run, {}, placeOf);
    all.push_back(std::move(run));
  }
  return all;
}

std::string explanationTable(const ServiceRun& run, const std::optional<Bandwidths>& bandwidths) {
  std::string text =
      titleOf(run) +
      "\n\n   machine             under way  waiting          moving           computing        sent        "
      "received\n";
  for (const SummationTimes& times : run) text += rowOf(times);
  const std::optional<SummationTimes> slowest = slowestOf(run);
  if (const auto least = slowest ? leastOf(*slowest, bandwidths) : std::nullopt) {
    const double took = secondsOf(slowest->underWay());
    text += "\nleast time by --bandwidth: " + timeText(*least * 1e6) + "; the sums of " + slowest->worker + " took " +
            timeText(took * 1e6) + ", " + fixed(took / *least, 2) + " times as long\n";
  }
  text += "\n";
  for (const std::string& one : adviceFor(run, bandwidths)) text += one + "\n";
  return text;
}

std::string explanationLegend() {
  return "\nunder way: at least one sum was, or on a server a part; waiting: for others to begin or to end a sum; "
         "moving: "
         "for the network; computing: packing, adding, unpacking, reading and writing; sent, received: without the "
         "waiting\n";
}

std::string explanationJson(const std::vector<ServiceRun>& runs,
                            const std::vector<std::optional<Bandwidths>>& bandwidths) {
  nlohmann::ordered_json all = nlohmann::ordered_json::array();
  for (size_t i = 0; i < runs.size(); ++i) {
    nlohmann::ordered_json one = {{"service", runs[i].front().service},
                                  {"number", runs[i].front().number},
                                  {"asynchronous", runs[i].front().isAsynchronous},
                                  {"workers", runs[i].front().workers.size()},
                                  {"servers", runs[i].front().servers.size()}};
    for (const SummationTimes& times : runs[i]) one["machines"].push_back(jsonOf(times));
    const std::optional<SummationTimes> slowest = slowestOf(runs[i]);
    if (const auto least = slowest ? leastOf(*slowest, bandwidths[i]) : std::nullopt) one["least_seconds"] = *least;
    one["advice"] = adviceFor(runs[i], bandwidths[i]);
    all.push_back(std::move(one));
  }
  return all.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace treadle::cli

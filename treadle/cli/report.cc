#include "treadle/cli/report.h"

#include <signal.h>

#include <algorithm>
#include <tuple>
#include <utility>
#include <vector>

namespace treadle::cli {
namespace {

using namespace std::chrono_literals;

// Note [First failure]
// The order of the ends is nearly the answer, with five exceptions.
// * A worker that ends because of another one says so. It counts only when no worker failed by itself.
// * The others go on without a summation server, unless they are still joining: then they give up at once. So it counts
//   only where all workers that failed gave up, and ended within `kReportDelay` of it.
// * A worker that ends by an exception of its own says so before it leaves the job. It may well take longer to be gone
//   than those that end because it left.
// * A worker that is stopped (SIGSTOP) ends last, when the launcher kills it. It failed when it stopped; a SIGCONT
//   makes up for it.
// * The kernel closes a dying process's sockets a moment before it tells the parent of the death. On a busy machine
//   a peer can see the closed socket, give up and be reported first. But a peer that gives up exits, or aborts
//   over an exception; it is not killed by SIGKILL or SIGSEGV. So such a death is taken as the first failure
//   when it is reported within `kReportDelay` of an exit or an abort.
constexpr Duration kReportDelay = 1s;

// When it stopped counts, even if somebody else than the launcher killed it later.
TimePoint failedAt(const WorkerRecord& worker) {
  return worker.stop ? worker.stop->at : worker.toldFailureAt.value_or(worker.endedAt);
}

// By itself: one that the launcher had to end did nothing wrong, unless it stood still by then.
bool failed(const WorkerRecord& worker) {
  if (!worker.end || worker.end->good()) return false;
  return worker.sentSignal == 0 || worker.stop;
}

// A death that the loss of a peer does not bring about.
bool isCause(const WorkerRecord& worker) {
  if (worker.gaveUp) return false;
  return worker.toldFailureAt || (!worker.stop && worker.end->killed && worker.end->value != SIGABRT);
}

// What became of a worker besides the first; `plural` for several of the same fate.
std::string fateOf(const WorkerRecord& worker, TimePoint first, bool plural) {
  std::string was = plural ? "were" : "was";
  if (!worker.end) return was + " still running";
  if (worker.end->good()) return worker.endedAt < first ? "had ended well" : "ended well";
  if (worker.stop) return was + " stopped and then ended by the launcher";
  if (worker.sentSignal != 0) return was + " ended by the launcher";
  if (worker.end->killed)
    return (worker.endedAt < first ? "had been killed by " : was + " then killed by ") +
           io::signalName(worker.end->value);
  return "then ended with exit code " + std::to_string(worker.end->value);
}

// A server that others outlived.
bool isMissedByNobody(const WorkerRecord& process, std::span<const WorkerRecord> all) {
  if (!process.isServer || !process.end->killed) return false;
  return std::none_of(all.begin(), all.end(), [&](const WorkerRecord& one) {
    return !one.isServer && failed(one) && failedAt(one) <= failedAt(process) + kReportDelay;
  });
}

}  // namespace

std::optional<size_t> firstFailure(std::span<const WorkerRecord> workers) {
  std::optional<size_t> first;
  auto earlier = [&](size_t index) {
    const WorkerRecord &one = workers[index], &other = workers[*first];
    // Ties go to the lower rank: the ends of one look are told apart by their time stamps already.
    const auto order = [](const WorkerRecord& of) { return std::tuple(of.gaveUp, of.isServer, failedAt(of)); };
    return order(one) < order(other);
  };
  for (size_t i = 0; i < workers.size(); ++i)
    if (failed(workers[i]) && !isMissedByNobody(workers[i], workers) && (!first || earlier(i))) first = i;
  if (!first || workers[*first].stop || isCause(workers[*first])) return first;

  TimePoint latest = workers[*first].endedAt + kReportDelay;
  std::optional<size_t> cause;
  for (size_t i = 0; i < workers.size(); ++i) {
    if (!failed(workers[i]) || !isCause(workers[i]) || workers[i].isServer || failedAt(workers[i]) > latest) continue;
    if (!cause || failedAt(workers[i]) < failedAt(workers[*cause])) cause = i;
  }
  return cause ? cause : first;
}

std::string identify(const WorkerRecord& worker) {
  std::string name = worker.name.empty() ? "" : worker.name + ", ";
  return "rank " + std::to_string(worker.rank) + " (" + name + "pid " + std::to_string(worker.pid) + ")";
}

std::string howItEnded(const WorkerRecord& worker) {
  if (worker.stop) return "was stopped by " + io::signalName(worker.stop->signal);
  return endOf(worker) + (worker.gaveUp && !worker.end->killed ? " because of another worker" : "");
}

std::string endOf(const WorkerRecord& worker) {
  if (!worker.end->killed) return "ended with exit code " + std::to_string(worker.end->value);
  return "was killed by " + io::signalName(worker.end->value) + (worker.end->coreDumped ? " (core dumped)" : "");
}

std::string describeFailure(std::span<const WorkerRecord> workers, size_t first) {
  std::string text = identify(workers[first]) + " " + howItEnded(workers[first]);
  if (workers.size() == 1) return text;
  TimePoint when = failedAt(workers[first]);
  std::vector<std::pair<size_t, std::vector<int>>> groups;  // an example of each fate and the ranks that share it
  for (size_t i = 0; i < workers.size(); ++i) {
    if (i == first) continue;
    auto same = [&](const auto& group) {
      return fateOf(workers[group.first], when, false) == fateOf(workers[i], when, false);
    };
    auto group = std::find_if(groups.begin(), groups.end(), same);
    if (group == groups.end()) group = groups.insert(group, {i, {}});
    group->second.push_back(workers[i].rank);
  }
  if (!workers[first].gaveUp) text += " first";
  for (const auto& [example, ranks] : groups)
    text += "; " + rankList(ranks) + " " + fateOf(workers[example], when, ranks.size() > 1);
  return text;
}

int exitCodeOf(const WorkerRecord& worker) { return worker.end->killed ? 128 + worker.end->value : worker.end->value; }

std::string rankList(const std::vector<int>& ranks) {
  std::vector<std::string> parts;
  for (size_t i = 0; i < ranks.size();) {
    size_t end = i + 1;
    while (end < ranks.size() && ranks[end] == ranks[end - 1] + 1) ++end;
    if (end - i < 4) end = i + 1;
    parts.push_back(std::to_string(ranks[i]) + (end - i > 1 ? "-" + std::to_string(ranks[end - 1]) : ""));
    i = end;
  }
  std::string text = ranks.size() > 1 ? "ranks " : "rank ";
  for (size_t i = 0; i < parts.size(); ++i) text += (i == 0 ? "" : i + 1 == parts.size() ? " and " : ", ") + parts[i];
  return text;
}

}  // namespace treadle::cli

#include "treadle/cli/examination.h"

#include <algorithm>

#include "treadle/cli/probe.h"

namespace treadle::cli {
namespace {

using namespace std::chrono_literals;

constexpr const char* kTooLate = "not tried: the time was up; --timeout gives more";

bool allows(const Told& told, const std::string& channel) {
  return std::find(told.channels.begin(), told.channels.end(), channel) != told.channels.end();
}

// Both sides have a reason, as a rule the same one.
std::string bothReasons(const ProbeResult& first, const ProbeResult& second, int firstRank, int secondRank) {
  if (first.works || first.why.empty() || first.why == second.why) return second.why.empty() ? first.why : second.why;
  if (second.works || second.why.empty()) return first.why;
  return "rank " + std::to_string(firstRank) + ": " + first.why + "; rank " + std::to_string(secondRank) + ": " +
         second.why;
}

}  // namespace

// The circle method: one stays, the others move by one place from round to round.
std::vector<std::vector<std::pair<int, int>>> roundsOf(int workers) {
  const int even = workers + workers % 2;
  std::vector<std::vector<std::pair<int, int>>> rounds;
  for (int round = 0; round + 1 < even; ++round) {
    auto& pairs = rounds.emplace_back();
    for (int i = 0; i < even / 2; ++i) {
      int a = i == 0 ? even - 1 : (round + i) % (even - 1), b = (round + even - 1 - i) % (even - 1);
      if (a < workers && b < workers) pairs.emplace_back(std::min(a, b), std::max(a, b));
    }
  }
  return rounds;
}

void Examination::run() {
  askAll();
  findRoutes();
  for (const char* channel : kChannelNames) tryChannel(channel);
  auto byRanks = [](const auto& a, const auto& b) {
    return std::pair(a.first, a.second) < std::pair(b.first, b.second);
  };
  std::stable_sort(findings_.channels.begin(), findings_.channels.end(), byRanks);
  std::stable_sort(findings_.routes.begin(), findings_.routes.end(), byRanks);
}

Duration Examination::left() const { return std::max<Duration>(deadline_ - Clock::now(), 1ms); }

void Examination::askAll() {
  std::vector<Future<Told>> answers;
  for (int rank = 0; rank < workers_; ++rank) answers.push_back(limited().asyncNamed<Told>(rank, kTellFunction));
  told_.resize(static_cast<size_t>(workers_));
  findings_.facts.resize(static_cast<size_t>(workers_));
  for (size_t rank = 0; rank < answers.size(); ++rank) {
    try {
      told_[rank] = answers[rank].wait();
      findings_.facts[rank] = told_[rank]->facts;
    } catch (const Error& error) {
      findings_.trouble += (findings_.trouble.empty() ? "" : "; ") + std::string(error.what());
    }
  }
  findings_.facts[0].push_back(idleFact());
}

void Examination::note(const std::string& channel, Pair pair, bool works, std::string text, double microseconds) {
  findings_.channels.push_back({channel, pair.first, pair.second, works, std::move(text), microseconds});
}

std::string Examination::whyGone(Pair pair) const {
  for (int rank : {pair.first, pair.second}) {
    try {
      (void)worker_.channelsTo(rank);
    } catch (const Error& error) {
      return error.what();
    }
    if (!told_[static_cast<size_t>(rank)]) return "rank " + std::to_string(rank) + " did not answer";
  }
  return "";
}

// What need not be tried.
std::string Examination::whyNot(const std::string& channel, Pair pair) const {
  if (std::string gone = whyGone(pair); !gone.empty()) return "does not work: " + gone;
  for (int rank : {pair.first, pair.second}) {
    const Told& told = *told_[static_cast<size_t>(rank)];
    std::string who = "rank " + std::to_string(rank);
    if (!allows(told, channel)) return "told not to: TREADLE_CHANNELS of " + who + " is without " + channel;
    if ((channel == "shm" || channel == "cma") && !allows(told, "unix"))
      return "told not to: it needs unix, and TREADLE_CHANNELS of " + who + " is without";
  }
  return late() ? kTooLate : "";
}

void Examination::tryChannel(const std::string& channel) {
  for (const Round& round : roundsOf(workers_)) tryRound(channel, round);
}

void Examination::tryRound(const std::string& channel, const Round& round) {
  struct Trial {
    Pair pair;
    Future<ProbeResult> first, second;
  };
  std::vector<Trial> trials;
  double seconds = std::chrono::duration<double>(std::min<Duration>(left(), longestProbe_)).count();
  for (const Pair& pair : round) {
    std::string why = whyNot(channel, pair);
    size_t place = trials.size();
    Result<ReservedPort> port = place < ports_.size() ? ReservedPort() : reservePort(0);
    if (why.empty() && !port.ok()) why = "not tried: " + port.status().message();
    if (!why.empty()) {
      note(channel, pair, false, why);
      continue;
    }
    if (place == ports_.size()) ports_.push_back(std::move(*port));
    ProbeTask task{channel, pair.first, pair.second, 0, ports_[place].port, makeJobKey()->key, seconds};
    auto first = limited().asyncNamed<ProbeResult>(pair.first, "treadle.doctor.probe", task);
    std::swap(task.rank, task.peer);
    task.side = 1;
    trials.push_back({pair, first, limited().asyncNamed<ProbeResult>(pair.second, "treadle.doctor.probe", task)});
  }
  for (Trial& trial : trials) {
    try {
      ProbeResult first = trial.first.wait(), second = trial.second.wait();
      bool works = first.works && second.works;
      std::string why = works ? "" : bothReasons(first, second, trial.pair.first, trial.pair.second);
      note(channel, trial.pair, works, works ? "works" : "does not work: " + why, works ? first.microseconds : 0);
    } catch (const Error& error) {
      note(channel, trial.pair, false, late() ? kTooLate : std::string("does not work: ") + error.what());
    }
  }
}

void Examination::findRoutes() {
  for (const Round& round : roundsOf(workers_)) {
    std::vector<Future<std::string>> answers;
    for (const Pair& pair : round)
      answers.push_back(limited().asyncNamed<std::string>(pair.first, "treadle.doctor.routeTo", pair.second));
    for (size_t i = 0; i < round.size(); ++i) {
      try {
        findings_.routes.push_back({round[i].first, round[i].second, true, answers[i].wait()});
      } catch (const Error& error) {
        findings_.routes.push_back({round[i].first, round[i].second, false, std::string("nothing: ") + error.what()});
      }
    }
  }
}

}  // namespace treadle::cli

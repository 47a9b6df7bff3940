#include "treadle/core/cluster/cost_survey.h"

#include <algorithm>
#include <array>

namespace treadle::cluster {
namespace {

// The probes of a round are sent at once; the next round begins when all their echoes are there. The fastest round of a
// phase counts: others of the machine disturb some of them.
struct Phase {
  int rounds, probes;
  size_t sizeBytes;
};

// Round trips of one empty message. Then bursts of them, whose messages follow each other as fast as the slower end
// handles them: the gap of the LogP model (D. Culler et al., 1993). Then growing transfers, the first of which open the
// window of TCP.
constexpr auto kPhases = std::to_array<Phase>(
    {{8, 1, 0}, {4, 16, 0}, {1, 1, size_t{64} << 10}, {1, 1, size_t{256} << 10}, {2, 1, size_t{1} << 20}});

// Of empty messages: fewer might all meet a worker that has just lost its core.
constexpr int kLeastRounds = 3;

double secondsOf(Duration duration) { return std::chrono::duration<double>(duration).count(); }

bool isTransfer(const Phase& phase) { return phase.sizeBytes > 0; }

}  // namespace

CostSurvey::CostSurvey(const Costs& known, const std::vector<RosterEntry>& roster, bool sharesMemory) : costs_(known) {
  const std::string here = roster.empty() ? "" : hostOf(roster.front());
  const auto add = [&](bool isHere, LinkCosts Costs::* link, bool transfers) {
    const auto one = std::find_if(roster.begin(), roster.end(), [&](const RosterEntry& entry) {
      return entry.worker.rank != 0 && (hostOf(entry) == here) == isHere;
    });
    if (one != roster.end()) subjects_.push_back({one->worker.rank, link, transfers});
  };
  add(true, &Costs::sameHost, !sharesMemory);
  add(false, &Costs::betweenHosts, true);
}

std::vector<CostSurvey::Probe> CostSurvey::begin(TimePoint now, Duration time) {
  end_ = now + time;
  return send(now);
}

std::vector<CostSurvey::Probe> CostSurvey::send(TimePoint now) {
  if (done()) return {};
  const Phase& phase = kPhases[phase_];
  missing_ = phase.probes;
  sentAt_ = now;
  const Probe probe{subjects_[subject_].rank, ++number_, phase.sizeBytes};
  return std::vector<Probe>(static_cast<size_t>(phase.probes), probe);
}

std::vector<CostSurvey::Probe> CostSurvey::onEcho(int rank, uint32_t number, TimePoint now) {
  if (done() || rank != subjects_[subject_].rank || number != number_ || missing_ == 0) return {};
  if (--missing_ > 0) return {};
  const Duration took = now - sentAt_;
  note(took);
  if (!advance(now, took)) {
    ++subject_;
    phase_ = 0;
    round_ = 0;
    fastest_ = Duration::max();
  }
  return send(now);
}

// What the round that has ended says.
void CostSurvey::note(Duration took) {
  const Phase& phase = kPhases[phase_];
  LinkCosts& link = costs_.*subjects_[subject_].link;
  fastest_ = std::max(Duration(1), std::min(fastest_, took));
  if (phase_ == 0) {
    roundTrip_ = fastest_;
    link.latency = secondsOf(roundTrip_) / 2;
    return;
  }
  const Duration beyond = fastest_ - roundTrip_;
  if (beyond <= Duration::zero()) return;
  if (isTransfer(phase)) {
    link.bandwidth = static_cast<double>(phase.sizeBytes) / secondsOf(beyond);
  } else if (subject_ == 0) {
    costs_.message = secondsOf(beyond) / (phase.probes - 1);
  }
}

// To the next round. False when the subject is done with: a transfer is begun only when it will end in time, as far as
// the probe before it shows.
bool CostSurvey::advance(TimePoint now, Duration last) {
  const size_t before = kPhases[phase_].sizeBytes;
  if (++round_ == kPhases[phase_].rounds) {
    ++phase_;
    round_ = 0;
    fastest_ = Duration::max();
  }
  if (phase_ == kPhases.size()) return false;
  const Phase& next = kPhases[phase_];
  if (!isTransfer(next)) return now < end_ || (phase_ == 0 && round_ < kLeastRounds);
  if (!subjects_[subject_].transfers) return false;
  return now + last * static_cast<int>(before == 0 ? 2 : next.sizeBytes / before) < end_;
}

}  // namespace treadle::cluster

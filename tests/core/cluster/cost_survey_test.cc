// The survey of a job's links on simulated ones, whose true costs are known, in simulated time.

#include "treadle/core/cluster/cost_survey.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <queue>

namespace treadle::cluster::cost_survey_test {
namespace {

using namespace std::chrono_literals;

constexpr TimePoint kBegin{1h};

Duration seconds(double count) { return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(count)); }

// A worker that handles one message after the other, `gap` seconds each, behind a link of that latency and bandwidth.
struct Worker {
  LinkCosts link;
  double gap;
  double freeAt = 0;
};

// Sends what the survey asks for and brings the echoes back in the order of time.
class Links {
 public:
  explicit Links(std::map<int, Worker> workers) : workers_(std::move(workers)) {}

  // Until no echo is under way, or so many have come; the time of the last, in seconds from the beginning.
  double run(CostSurvey& survey, int echoed = 1'000'000) {
    double now = 0;
    send(survey.begin(kBegin), now);
    while (!echoes_.empty() && echoed-- > 0) {
      const auto [at, rank, number] = echoes_.top();
      echoes_.pop();
      now = at;
      send(survey.onEcho(rank, number, kBegin + seconds(now)), now);
    }
    return now;
  }
  // The worker that gets the probe with this index, from 0 on, stops for so many seconds before.
  void delay(int index, double seconds) { delays_[index] = seconds; }
  const std::map<int, int>& sentTo() const { return sentTo_; }

 private:
  struct Echo {
    double at;
    int rank;
    uint32_t number;
    bool operator<(const Echo& other) const { return at > other.at; }
  };

  void send(const std::vector<CostSurvey::Probe>& probes, double now) {
    for (const CostSurvey::Probe& probe : probes) {
      Worker& worker = workers_.at(probe.rank);
      const double arrives = now + worker.link.latency + static_cast<double>(probe.sizeBytes) / worker.link.bandwidth;
      worker.freeAt = std::max(worker.freeAt, arrives) + delays_[sent_++] + worker.gap;
      echoes_.push({worker.freeAt - worker.gap + worker.link.latency, probe.rank, probe.number});
      ++sentTo_[probe.rank];
    }
  }

  std::map<int, Worker> workers_;
  std::priority_queue<Echo> echoes_;
  std::map<int, int> sentTo_;
  std::map<int, double> delays_;
  int sent_ = 0;
};

const RosterEntry kHere{{"ps", 0}, {"tcp://10.0.0.1:1"}}, kNear{{"near", 1}, {"tcp://10.0.0.1:2"}},
    kFar{{"far", 2}, {"tcp://10.0.0.2:1"}}, kFarther{{"farther", 3}, {"tcp://10.0.0.3:1"}};
const Costs kKnown{{1e-3, 5e9}, {2e-3, 3e9}, 4e-3, 16};

TEST(CostSurvey, findsTheCostsOfBothKindsOfLinks) {
  Links links({{1, {{10e-6, 5e9}, 2e-6}}, {2, {{50e-6, 1e9}, 3e-6}}});
  CostSurvey survey(kKnown, {kHere, kNear, kFar, kFarther}, true);
  const double took = links.run(survey);
  EXPECT_TRUE(survey.done());
  EXPECT_EQ(rounded({{10e-6, 5e9}, {50e-6, 1e9}, 2e-6, 16}), survey.costs());
  EXPECT_LT(took, 0.01);
  EXPECT_FALSE(links.sentTo().contains(3)) << "one worker for each kind";
}

TEST(CostSurvey, measuresTheBandwidthOfAHostWhoseWorkersShareNoMemory) {
  Links links({{1, {{10e-6, 2e9}, 2e-6}}});
  CostSurvey survey(kKnown, {kHere, kNear}, false);
  links.run(survey);
  EXPECT_EQ(rounded({{10e-6, 2e9}, kKnown.betweenHosts, 2e-6, 16}), survey.costs());
}

TEST(CostSurvey, keepsWhatIsKnownOfKindsThatTheJobDoesNotHave) {
  Links links({{2, {{50e-6, 1e9}, 3e-6}}});
  CostSurvey survey(kKnown, {kHere, kFar}, true);
  links.run(survey);
  EXPECT_EQ(rounded({kKnown.sameHost, {50e-6, 1e9}, 3e-6, 16}), survey.costs());
  CostSurvey alone(kKnown, {kHere}, true);
  EXPECT_TRUE(alone.begin(kBegin).empty());
  EXPECT_TRUE(alone.done());
  EXPECT_EQ(rounded(kKnown), alone.costs());
}

// Another program takes the processor during some probes: each kind of probe is sent more than once.
TEST(CostSurvey, isNotMisledByOneDelayInEachPhase) {
  for (int delayed : {1, 7, 8 + 5, 8 + 3 * 16 + 2}) {
    Links links({{1, {{10e-6, 5e9}, 2e-6}}});
    links.delay(delayed, 1e-3);
    CostSurvey survey(kKnown, {kHere, kNear}, true);
    links.run(survey);
    EXPECT_EQ(rounded({{10e-6, 5e9}, kKnown.betweenHosts, 2e-6, 16}), survey.costs()) << delayed;
  }
}

// On a slow network a transfer is not begun that would not end in time.
TEST(CostSurvey, takesNoLongerThanItMayOnASlowNetwork) {
  for (double bandwidth : {1e7, 3e7, 1e8, 3e8, 1e9}) {
    Links links({{2, {{100e-6, bandwidth}, 5e-6}}});
    CostSurvey survey(kKnown, {kHere, kFar}, true);
    const double took = links.run(survey);
    EXPECT_TRUE(survey.done());
    EXPECT_LE(took, std::max(0.01, 65'536 / bandwidth + 0.002)) << bandwidth;
    EXPECT_EQ(rounded({kKnown.sameHost, {100e-6, bandwidth}, 5e-6, 16}), survey.costs()) << bandwidth;
  }
}

// Three round trips to each, also when one of them takes long.
TEST(CostSurvey, makesThreeRoundTripsOnLinksOfGreatLatency) {
  for (double latency : {4e-3, 6e-3, 40e-3})
    for (int delayed : {8 + 4 * 16, 8 + 4 * 16 + 1, 8 + 4 * 16 + 2}) {
      Links links({{1, {{10e-6, 5e9}, 2e-6}}, {2, {{latency, 1e9}, 5e-6}}});
      links.delay(delayed, 30e-3);
      CostSurvey survey(kKnown, {kHere, kNear, kFar}, true);
      EXPECT_NEAR(links.run(survey), 6 * latency + 30e-3, 1e-3);
      EXPECT_TRUE(survey.done());
      EXPECT_EQ(rounded({{10e-6, kKnown.sameHost.bandwidth}, {latency, kKnown.betweenHosts.bandwidth}, 2e-6, 16}),
                survey.costs());
    }
}

// As far as it came, wherever the echoes end.
TEST(CostSurvey, hasUsableCostsWhenEchoesDoNotCome) {
  for (int echoed = 0; echoed < 160; ++echoed) {
    Links links({{1, {{10e-6, 5e9}, 2e-6}}, {2, {{50e-6, 1e9}, 3e-6}}});
    CostSurvey survey(kKnown, {kHere, kNear, kFar}, true);
    links.run(survey, echoed);
    const Costs costs = survey.costs();
    EXPECT_TRUE(isUsable(costs)) << echoed;
    const Costs known = rounded(kKnown), measured = rounded({{10e-6, 5e9}, {50e-6, 1e9}, 2e-6, 16});
    EXPECT_EQ(costs.sameHost.latency, (echoed < 1 ? known : measured).sameHost.latency) << echoed;
    EXPECT_EQ(costs.message, (echoed < 8 + 16 ? known : measured).message) << echoed;
    EXPECT_EQ(costs.betweenHosts.latency, (echoed < 8 + 4 * 16 + 1 ? known : measured).betweenHosts.latency) << echoed;
  }
}

TEST(CostSurvey, ignoresEchoesThatItDoesNotWaitFor) {
  CostSurvey survey(kKnown, {kHere, kNear}, true);
  EXPECT_TRUE(survey.onEcho(1, 0, kBegin).empty()) << "before it began";
  const CostSurvey::Probe first = survey.begin(kBegin).front();
  for (auto [rank, number] : {std::pair{0, first.number},
                              {2, first.number},
                              {-1, first.number},
                              {1, first.number + 1},
                              {1, first.number - 1},
                              {1, UINT32_MAX}})
    EXPECT_TRUE(survey.onEcho(rank, number, kBegin + 1us).empty());
  EXPECT_EQ(rounded(kKnown), survey.costs());
  EXPECT_EQ(1U, survey.onEcho(1, first.number, kBegin + 20us).size());
  EXPECT_TRUE(survey.onEcho(1, first.number, kBegin + 20us).empty()) << "twice";
  EXPECT_EQ(rounded({{10e-6, 0.0001}, {}, 1, 1}).sameHost.latency, survey.costs().sameHost.latency);
}

// A clock that stands still, or echoes that come in no time, leave no impossible numbers.
TEST(CostSurvey, survivesAClockThatStandsStill) {
  CostSurvey survey(kKnown, {kHere, kNear, kFar}, false);
  std::vector<CostSurvey::Probe> probes = survey.begin(kBegin);
  while (!probes.empty()) {
    std::vector<CostSurvey::Probe> next;
    for (const CostSurvey::Probe& probe : probes)
      if (auto more = survey.onEcho(probe.rank, probe.number, kBegin); !more.empty()) next = more;
    probes = next;
  }
  EXPECT_TRUE(survey.done());
  EXPECT_TRUE(isUsable(survey.costs()));
}

}  // namespace
}  // namespace treadle::cluster::cost_survey_test

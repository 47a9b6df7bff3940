#include "treadle/cli/findings.h"

#include <algorithm>
#include <array>
#include <map>
#include <nlohmann/json.hpp>

#include "treadle/cli/numbers.h"
#include "treadle/cli/probe.h"
#include "treadle/cli/report.h"

namespace treadle::cli {
namespace {

using Pair = std::pair<int, int>;
using Pairs = std::vector<Pair>;

using Rows = std::vector<std::array<std::string, 3>>;

std::string laidOut(const Rows& rows) {
  size_t first = 0, second = 0;
  for (const auto& row : rows) first = std::max(first, row[0].size()), second = std::max(second, row[1].size());
  std::string text;
  for (const auto& row : rows) text += padded(row[0], first + 2) + padded(row[1], second + 2) + row[2] + "\n";
  return text;
}

// "all pairs", "rank 2 with all", "0-1, 0-2", "0-1, 0-2 and 9 more pairs".
std::string pairsText(const Pairs& pairs, int workers) {
  constexpr size_t kShown = 4;
  auto all = static_cast<size_t>(workers) * static_cast<size_t>(workers - 1) / 2;
  if (workers > 2 && pairs.size() == all) return "all pairs";
  for (int rank = 0; workers > 3 && rank < workers; ++rank) {
    auto has = [rank](const Pair& pair) { return pair.first == rank || pair.second == rank; };
    if (pairs.size() == static_cast<size_t>(workers) - 1 && std::all_of(pairs.begin(), pairs.end(), has))
      return "rank " + std::to_string(rank) + " with all";
  }
  std::string text;
  for (size_t i = 0; i < std::min(kShown, pairs.size()); ++i)
    text += (i == 0 ? "" : ", ") + std::to_string(pairs[i].first) + "-" + std::to_string(pairs[i].second);
  if (pairs.size() > kShown) text += " and " + std::to_string(pairs.size() - kShown) + " more pairs";
  return text;
}

// Values that are alike, with who has them, in the order in which they came first.
template <class Who>
class Groups {
 public:
  void add(const std::string& text, Who who) {
    auto [at, isNew] = places_.emplace(text, groups_.size());
    if (isNew) groups_.push_back({text, {}});
    groups_[at->second].second.push_back(std::move(who));
  }
  const std::vector<std::pair<std::string, std::vector<Who>>>& all() const { return groups_; }

 private:
  std::map<std::string, size_t> places_;
  std::vector<std::pair<std::string, std::vector<Who>>> groups_;
};

std::vector<std::string> channelsIn(const Findings& findings) {
  std::vector<std::string> names;
  for (const Finding& each : findings.channels)
    if (std::find(names.begin(), names.end(), each.channel) == names.end()) names.push_back(each.channel);
  return names;
}

// "1 MiB there and back in 0.31 ms", of several pairs the quickest and the slowest.
std::string timesText(std::vector<double> times) {
  std::erase(times, 0.0);
  if (times.empty()) return "";
  auto [least, most] = std::minmax_element(times.begin(), times.end());
  std::string text = ": " + bytesText(kProbeBytes) + " there and back in " + timeText(*least);
  return times.size() == 1 ? text : text + " to " + timeText(*most);
}

void addChannelRows(const Findings& findings, Rows& rows) {
  for (const std::string& name : channelsIn(findings)) {
    Groups<Finding> groups;
    for (const Finding& each : findings.channels)
      if (each.channel == name) groups.add(each.text, each);
    for (const auto& [what, members] : groups.all()) {
      Pairs pairs;
      std::vector<double> times;
      for (const Finding& each : members) {
        pairs.emplace_back(each.first, each.second);
        times.push_back(each.microseconds);
      }
      rows.push_back({name, pairsText(pairs, findings.workers), what + timesText(times)});
    }
  }
}

void addRouteRows(const Findings& findings, Rows& rows) {
  Groups<Pair> groups;
  for (const Route& each : findings.routes) groups.add(each.text, Pair(each.first, each.second));
  for (const auto& [what, pairs] : groups.all()) rows.push_back({"in use", pairsText(pairs, findings.workers), what});
}

// A row for each fact, or one for each of its values with the ranks that have it.
std::string factRows(const Findings& findings) {
  std::map<std::string, Groups<int>> byName;
  std::vector<std::string> names;
  for (size_t rank = 0; rank < findings.facts.size(); ++rank)
    for (const Fact& fact : findings.facts[rank]) {
      if (!byName.contains(fact.name)) names.push_back(fact.name);
      byName[fact.name].add(fact.text + (fact.advice.empty() ? "" : "; " + fact.advice), static_cast<int>(rank));
    }
  std::string text;
  for (const std::string& name : names)
    for (const auto& [what, ranks] : byName[name].all()) {
      bool one = byName[name].all().size() == 1;
      text += padded(name, 26) + (one ? what : rankList(ranks) + ": " + what) + "\n";
    }
  return text;
}

nlohmann::ordered_json pairJson(int first, int second) { return nlohmann::ordered_json::array({first, second}); }

}  // namespace

bool Findings::good() const {
  return trouble.empty() && std::all_of(routes.begin(), routes.end(), [](const Route& route) { return route.works; });
}

std::string tableOf(const Findings& findings) {
  std::string text;
  Rows rows = {{"channel", "ranks", "what"}};
  addChannelRows(findings, rows);
  addRouteRows(findings, rows);
  if (rows.size() > 1) text += laidOut(rows);
  if (std::string facts = factRows(findings); !facts.empty()) text += "\n" + facts;
  if (findings.workers == 1) text += "\na job of one worker: there is nobody to talk to\n";
  if (!findings.trouble.empty()) text += "\n" + findings.trouble + "\n";
  return text;
}

std::string jsonOf(const Findings& findings) {
  nlohmann::ordered_json json = {{"workers", findings.workers},
                                 {"good", findings.good()},
                                 {"trouble", findings.trouble},
                                 {"channels", nlohmann::ordered_json::array()},
                                 {"routes", nlohmann::ordered_json::array()},
                                 {"machine", nlohmann::ordered_json::array()}};
  for (const Finding& each : findings.channels)
    json["channels"].push_back({{"channel", each.channel},
                                {"ranks", pairJson(each.first, each.second)},
                                {"works", each.works},
                                {"text", each.text},
                                {"microseconds", each.microseconds}});
  for (const Route& each : findings.routes)
    json["routes"].push_back(
        {{"ranks", pairJson(each.first, each.second)}, {"works", each.works}, {"text", each.text}});
  for (const auto& ofRank : findings.facts) {
    nlohmann::ordered_json facts = nlohmann::ordered_json::object();
    for (const Fact& fact : ofRank) facts[fact.name] = {{"text", fact.text}, {"advice", fact.advice}};
    json["machine"].push_back(facts);
  }
  // Texts come from peers and from the system: what is no UTF-8 is replaced.
  return json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace treadle::cli

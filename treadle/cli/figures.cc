#include "treadle/cli/figures.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "treadle/cli/numbers.h"

namespace treadle::cli {
namespace {

std::string valueText(double microseconds, bool perSecond) {
  if (!perSecond) return timeText(microseconds);
  return microseconds > 0 ? fixed(1e6 / microseconds, 0) + "/s" : "-";
}

// "12.1 us (11.0 us to 13.9 us)"; of many values the slowest hundredth too.
std::string seriesText(const Series& series, bool perSecond) {
  constexpr size_t kMany = 100;
  if (series.values.empty()) return "-";
  // What takes long is little in a second.
  const int low = perSecond ? 90 : 10;
  std::string text = valueText(series.at(50), perSecond) + " (" + valueText(series.at(low), perSecond) + " to " +
                     valueText(series.at(100 - low), perSecond);
  if (series.values.size() >= kMany && !perSecond) text += ", p99 " + valueText(series.at(99), perSecond);
  return text + ")";
}

double ratio(const Figure& figure, const Series& limit) {
  return limit.at(50) > 0 ? figure.ours.at(50) / limit.at(50) : 0;
}

std::vector<std::string> rowsOf(const Figure& figure) {
  constexpr size_t kName = 18, kSeries = 50;
  std::string first = padded(figure.name, kName) + padded(seriesText(figure.ours, figure.perSecond), kSeries);
  std::vector<std::string> rows;
  for (const Series& limit : figure.limits) {
    std::string left = rows.empty() ? first : std::string(first.size(), ' ');
    rows.push_back(left + padded(fixed(ratio(figure, limit), 2) + " x", 9) + limit.name + ": " +
                   seriesText(limit, figure.perSecond));
  }
  if (rows.empty()) rows.push_back(first);
  if (!figure.note.empty()) rows.push_back(padded("", kName) + figure.note);
  return rows;
}

nlohmann::ordered_json seriesJson(const Series& series) {
  return {{"median", series.at(50)},
          {"p10", series.at(10)},
          {"p90", series.at(90)},
          {"p99", series.at(99)},
          {"count", series.values.size()}};
}

}  // namespace

double Series::at(int percent) const {
  if (values.empty()) return 0;
  std::vector<double> sorted = values;
  std::sort(sorted.begin(), sorted.end());
  return sorted[std::min(sorted.size() - 1, sorted.size() * static_cast<size_t>(percent) / 100)];
}

std::string tableOf(const Figures& figures) {
  std::string text;
  for (const auto& [name, what] : figures.machine) text += padded(name, 18) + what + "\n";
  text += "\n" + padded("what", 18) + padded("median (p10 to p90)", 50) + padded("ratio", 9) + "beside, in turn\n";
  for (const Figure& figure : figures.figures)
    for (const std::string& row : rowsOf(figure)) text += row.substr(0, row.find_last_not_of(' ') + 1) + "\n";
  return text;
}

std::string jsonOf(const Figures& figures) {
  nlohmann::ordered_json json = {{"machine", nlohmann::ordered_json::object()}, {"unit", "us"}};
  for (const auto& [name, what] : figures.machine) json["machine"][name] = what;
  json["figures"] = nlohmann::ordered_json::array();
  for (const Figure& figure : figures.figures) {
    nlohmann::ordered_json one = {{"name", figure.name}, {"ours", seriesJson(figure.ours)}, {"note", figure.note}};
    one["limits"] = nlohmann::ordered_json::array();
    for (const Series& limit : figure.limits) {
      nlohmann::ordered_json beside = {{"name", limit.name}, {"ratio", ratio(figure, limit)}};
      beside.update(seriesJson(limit));
      one["limits"].push_back(std::move(beside));
    }
    json["figures"].push_back(std::move(one));
  }
  return json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace treadle::cli

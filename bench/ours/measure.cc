#include "bench/ours/measure.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace bench {
namespace {

// By order statistics, assuming no more than that the values are independent: of `count` sorted ones, the place at
// which the 95% interval of their median begins. It ends as far from the end.
size_t beginOfInterval(size_t count) {
  const double n = static_cast<double>(count), rank = std::floor(n / 2 - 0.98 * std::sqrt(n));
  return rank < 1 ? 0 : static_cast<size_t>(rank) - 1;
}

}  // namespace

void print(const std::string& caseName, Series series) {
  std::vector<double>& values = series.values;
  std::sort(values.begin(), values.end());
  auto at = [&](size_t percent) { return values[std::min(values.size() - 1, values.size() * percent / 100)]; };
  const size_t begin = beginOfInterval(values.size());
  std::string of = series.of.empty() ? "" : "\"of\": \"" + series.of + "\", ";
  std::printf(R"({"case": "%s", %s"unit": "%s", "median": %.9g, "low": %.9g, "high": %.9g, )"
              R"("p10": %.9g, "p90": %.9g, "p99": %.9g, "count": %zu})"
              "\n",
              (series.caseName.empty() ? caseName : series.caseName).c_str(), of.c_str(), series.unit, at(50),
              values[begin], values[values.size() - 1 - begin], at(10), at(90), at(99), values.size());
  std::fflush(stdout);
}

}  // namespace bench

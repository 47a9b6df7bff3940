#include "bench/ours/measure.h"

#include <algorithm>
#include <cstdio>

namespace bench {

void print(const std::string& caseName, Series series) {
  std::vector<double>& values = series.values;
  std::sort(values.begin(), values.end());
  auto at = [&](size_t percent) { return values[std::min(values.size() - 1, values.size() * percent / 100)]; };
  std::string of = series.of.empty() ? "" : "\"of\": \"" + series.of + "\", ";
  std::printf(R"({"case": "%s", %s"unit": "%s", "median": %.9g, "p10": %.9g, "p90": %.9g, "p99": %.9g, "count": %zu})"
              "\n",
              (series.caseName.empty() ? caseName : series.caseName).c_str(), of.c_str(), series.unit, at(50), at(10),
              at(90), at(99), values.size());
  std::fflush(stdout);
}

}  // namespace bench

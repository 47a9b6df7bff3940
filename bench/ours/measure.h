#pragma once
// How cases take times and how they are told: each yields one or more series of values, of ours and of what the machine
// can do at best, taken in turn so that a busy moment meets both.

#include <chrono>
#include <string>
#include <vector>

namespace bench {

struct Series {
  std::string of;  // empty: ours; else the limit that ours is compared with
  const char* unit;
  std::vector<double> values;
  std::string caseName = {};  // where a case measures several at once; empty: its own
};

// Microseconds that `body` took.
template <class Body>
double timeOf(Body body) {
  auto begin = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count();
}

// Microseconds of `repetitions` runs of `body` after `warmUp` others; `prepare` goes before each and is not counted.
template <class Prepare, class Body>
Series timed(int warmUp, int repetitions, Prepare prepare, Body body) {
  Series series{"", "us", {}};
  for (int i = 0; i < warmUp + repetitions; ++i) {
    prepare();
    double time = timeOf(body);
    if (i >= warmUp) series.values.push_back(time);
  }
  return series;
}

// The same for `body` and for `limit`, one run of each in turn.
template <class Prepare, class Body, class Limit>
std::vector<Series> alternated(const char* limitName, int warmUp, int repetitions, Prepare prepare, Body body,
                               Limit limit) {
  std::vector<Series> both = {{"", "us", {}}, {limitName, "us", {}}};
  for (int i = 0; i < warmUp + repetitions; ++i) {
    prepare();
    double ours = timeOf(body);
    prepare();
    double least = timeOf(limit);
    if (i < warmUp) continue;
    both[0].values.push_back(ours);
    both[1].values.push_back(least);
  }
  return both;
}

// Under the series' own name, if it has one. One line of JSON: {"case", "of", "unit", "median", "low", "high", "p10",
// "p90", "p99", "count"}, without "of" for ours. From low to high is the interval of the median, 95% or, of fewer than
// six values, all.
void print(const std::string& caseName, Series series);

}  // namespace bench

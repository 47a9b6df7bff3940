// The benchmark of calls and tensors: two workers, of whom rank 0 calls rank 1. Started by `treadle run -n 2`. Prints
// one line of JSON for each case: {"case", "unit", "median", "p10", "p90", "p99"}.

#include <ATen/Parallel.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>

#include "bench/ours/cases.h"

namespace {

void print(const std::string& name, const char* unit, std::vector<double> times) {
  std::sort(times.begin(), times.end());
  auto at = [&](size_t percent) { return times[std::min(times.size() - 1, times.size() * percent / 100)]; };
  std::printf(R"({"case": "%s", "unit": "%s", "median": %.3f, "p10": %.3f, "p90": %.3f, "p99": %.3f})"
              "\n",
              name.c_str(), unit, at(50), at(10), at(90), at(99));
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) try {
  CLI::App app(
      "Times of calls and tensors between two workers; start it with: treadle run -n 2 -- PROGRAM --cases call_empty");
  std::vector<std::string> names;
  std::vector<std::string> known;
  for (const auto& [name, one] : bench::cases()) known.push_back(name);
  int repetitions = 9;
  std::string listen;
  app.add_option("--cases", names, "what to measure")->delimiter(',')->required()->check(CLI::IsMember(known));
  app.add_option("--repetitions", repetitions, "timed runs of each (empty calls: thousands)")
      ->check(CLI::PositiveNumber);
  app.add_option("--listen", listen, "address to listen at; tcp://127.0.0.1:0 allows TCP only");
  CLI11_PARSE(app, argc, argv);

  at::set_num_threads(1);
  treadle::JoinOptions options{.functions = bench::served(), .launch = valueOrThrow(treadle::Launch::detect())};
  options.name = "bench" + std::to_string(options.launch->rank);
  if (!listen.empty()) options.listenAddress = listen;
  auto worker = treadle::join(std::move(options));
  if (worker->self().rank == 0)
    for (const std::string& name : names)
      print(name, bench::cases().at(name).unit, bench::cases().at(name).run(*worker, repetitions));
  worker->shutdown();
  return 0;
} catch (const treadle::Error& error) {
  std::fprintf(stderr, "bench: %s\n", error.what());
  return 1;
}

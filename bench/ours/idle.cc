// What an idle worker costs: rank 0 of a job of any size, without tensors. Started by `treadle run`. When all have
// joined and some time has passed, rank 0 prints its resident memory (Rss in /proc/self/smaps_rollup) and, with
// --seconds, the CPU time that its process takes in each second.

#include <CLI/CLI.hpp>
#include <cstdio>
#include <fstream>
#include <future>
#include <thread>

#include "bench/limits/cpu_time.h"
#include "bench/ours/measure.h"
#include "treadle/core.h"

namespace {

std::promise<void> released;
void release() { released.set_value(); }

double residentBytes() {
  std::ifstream file("/proc/self/smaps_rollup");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with("Rss:")) return std::stod(line.substr(4)) * 1024;
  throw std::runtime_error("/proc/self/smaps_rollup does not tell the resident memory");
}

void measure(std::chrono::duration<double> settle, std::chrono::duration<double> seconds) {
  std::this_thread::sleep_for(settle);
  bench::print("idle_rss", {"", "bytes", {residentBytes()}});
  if (seconds.count() > 0) bench::print("idle_cpu", {"", "us/s", {bench::cpuTimePerSecond(seconds)}});
}

}  // namespace

int main(int argc, char** argv) try {
  CLI::App app("Memory and CPU time of an idle worker; start it with: treadle run -n 9 -- PROGRAM --seconds 20");
  double settle = 3, seconds = 0;
  app.add_option("--settle", settle, "seconds before anything is measured");
  app.add_option("--seconds", seconds, "how long the CPU time is watched");
  CLI11_PARSE(app, argc, argv);

  treadle::JoinOptions options{.functions = treadle::Functions().add<&release>("release"),
                               .launch = valueOrThrow(treadle::Launch::detect())};
  options.name = "idle" + std::to_string(options.launch->rank);
  auto worker = treadle::Worker::join(std::move(options));
  if (worker->self().rank == 0) {
    measure(std::chrono::duration<double>(settle), std::chrono::duration<double>(seconds));
    for (const auto& peer : worker->peers())
      if (peer.rank != 0) worker->async<&release>(peer);
  } else {
    released.get_future().wait();
  }
  worker->shutdown();
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "bench: %s\n", error.what());
  return 1;
}

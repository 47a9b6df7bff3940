// The benchmark of calls and tensors: two workers, of whom rank 0 calls rank 1. Started by `treadle run -n 2`. Prints
// lines of JSON, see measure.h.

#include <ATen/Parallel.h>

#include <CLI/CLI.hpp>
#include <cstdio>

#include "bench/limits/echo.h"
#include "bench/ours/cases.h"

namespace {

struct Options {
  std::vector<std::string> cases;
  int repetitions = 20;
  bool tcp = false, tls = false, noWarmMemory = false;
};

void run(const Options& options, const bench::Cases& cases) {
  treadle::JoinOptions join{.functions = bench::served(), .launch = valueOrThrow(treadle::Launch::detect())};
  join.name = "bench" + std::to_string(join.launch->rank);
  if (options.tcp) {
    join.channels.emplace();
    join.channels->unixSockets = join.channels->sharedMemory = false;
  }
  if (options.noWarmMemory) join.warmMemory = false;
  if (options.tls) join.tls = treadle::TlsUse::kAlways;
  auto worker = treadle::join(std::move(join));
  if (worker->self().rank == 0)
    for (const std::string& name : options.cases)
      for (bench::Series& series : cases.at(name)(*worker, options.repetitions)) bench::print(name, std::move(series));
  worker->shutdown();
}

}  // namespace

int main(int argc, char** argv) try {
  if (bench::Echo::serve(argc, argv)) return 0;
  bench::Cases cases;
  bench::addCallCases(cases);
  bench::addTensorCases(cases);
  bench::addMemoryCases(cases);
  bench::addWarmMemoryCases(cases);
  bench::addAutogradCases(cases);
  std::vector<std::string> known;
  for (const auto& [name, one] : cases) known.push_back(name);

  CLI::App app(
      "Times of calls and tensors between two workers; start it with: treadle run -n 2 -- PROGRAM --cases call_empty");
  Options options;
  app.add_option("--cases", options.cases, "what to measure")->delimiter(',')->required()->check(CLI::IsMember(known));
  app.add_option("--repetitions", options.repetitions, "timed runs at 40 MB; of what is smaller more, of larger fewer")
      ->check(CLI::PositiveNumber);
  app.add_flag("--tcp", options.tcp, "TCP alone, no UNIX sockets and no shared memory");
  app.add_flag("--tls", options.tls, "TLS on what TCP there is");
  app.add_flag("--no-warm-memory", options.noWarmMemory, "libtorch's own allocator for tensors");
  CLI11_PARSE(app, argc, argv);
  at::set_num_threads(1);
  run(options, cases);
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "bench: %s\n", error.what());
  return 1;
}

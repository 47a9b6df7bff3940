// One worker of a job that all-reduces by a ring in the bed of bench/netbed.py, beside the summation service: prints
// when each round began and ended, in microseconds of the clock that all namespaces of a host share. Its place in the
// job is in the environment, as with any launcher.

#include <CLI/CLI.hpp>
#include <cstdio>
#include <span>

#include "bench/netbed/rounds.h"
#include "treadle/core.h"

int main(int argc, char** argv) try {
  CLI::App app("A worker of a ring in the bed that measures the summation service; started by bench/netbed.py");
  treadle::JoinOptions join{
      .allowPlaintext = true,
      .channels = treadle::Channels{.unixSockets = false, .sharedMemory = false, .crossMemory = false}};
  uint64_t bytes = 0;
  int rounds = 1;
  app.add_option("--bytes", bytes)->required();
  app.add_option("--rounds", rounds);
  app.add_option("--listen", join.listenAddress, "tcp://10.0.0.7:0")->required();
  CLI11_PARSE(app, argc, argv);
  const auto worker = treadle::Worker::join(std::move(join));
  std::vector<std::string> members;
  for (const treadle::WorkerInfo& peer : worker->peers()) members.push_back(peer.name);
  const auto group = treadle::ProcessGroup::make(*worker, members, {.algorithm = treadle::group::Algorithm::kRing});
  const auto size = static_cast<int32_t>(members.size());
  std::vector<int32_t> data(bytes / sizeof(int32_t));
  for (int round = 0; round < rounds; ++round) {
    std::fill(data.begin(), data.end(), (worker->self().rank + 1) * (round + 1));
    barrier(group).wait();
    const long begin = treadle::netbed::microseconds();
    allReduce(group, std::span(data)).wait();
    const long end = treadle::netbed::microseconds();
    barrier(group).wait();  // nobody looks through its sums while others are being timed
    treadle::netbed::check(data, size * (size + 1) / 2 * (round + 1));
    treadle::netbed::print(round, begin, end);
  }
  worker->shutdown();
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "ring: %s\n", error.what());
  return 1;
}

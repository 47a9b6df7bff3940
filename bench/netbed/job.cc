// One worker of a job in the bed of bench/netbed.py that sums in rounds, by all-reduces of a process group or by a
// summation service with the job's servers: prints when each round began and ended, in microseconds of the clock that
// all namespaces of a host share. Its place in the job is in the environment, as with any launcher.

#include <CLI/CLI.hpp>
#include <cstdio>
#include <functional>
#include <span>

#include "bench/netbed/rounds.h"
#include "treadle/core.h"

namespace {

using treadle::Future;

constexpr size_t kTensors = 8;  // a sum of one is under way while another one is added on its host

struct Sums {
  std::function<void(std::span<int32_t> data)> all;
  std::function<void()> end = [] {};
};

Sums byGroup(const treadle::ProcessGroup& group) {
  return {[group](std::span<int32_t> data) { allReduce(group, data).wait(); }};
}

Sums byService(treadle::Worker& worker, uint64_t elements) {
  std::vector<treadle::SummationTensor> tensors;
  const uint64_t each = elements / kTensors;
  for (size_t i = 0; i < kTensors; ++i)
    tensors.push_back({std::to_string(i), treadle::group::DataType::kInt32,
                       i + 1 < kTensors ? each : elements - each * (kTensors - 1)});
  auto service = treadle::SummationService::make(worker, {}, tensors);
  const auto all = [service, tensors](std::span<int32_t> data) mutable {
    std::vector<Future<void>> sums;
    for (const treadle::SummationTensor& tensor : tensors) {
      sums.push_back(service.sum(tensor.name, data.first(tensor.elements)));
      data = data.subspan(tensor.elements);
    }
    whenAll(std::move(sums)).wait();
  };
  return {all, [service]() mutable { service.leave().wait(); }};
}

}  // namespace

int main(int argc, char** argv) try {
  CLI::App app("A worker of a job in the bed that measures the summation service; started by bench/netbed.py");
  treadle::JoinOptions join;
  uint64_t bytes = 0;
  int rounds = 1;
  bool isService = false;
  bool isRing = false;
  app.add_option("--bytes", bytes)->required();
  app.add_option("--rounds", rounds);
  app.add_flag("--service", isService, "a summation service with the servers of the job, in place of all-reduces");
  app.add_flag("--ring", isRing, "all-reduces by a ring, in place of the algorithm that the group chooses");
  app.add_flag("--plaintext", join.allowPlaintext, "no TLS");
  app.add_option("--listen", join.listenAddress, "tcp://10.0.0.7:0");
  CLI11_PARSE(app, argc, argv);
  const auto worker = treadle::Worker::join(std::move(join));
  std::vector<std::string> members;
  for (const treadle::WorkerInfo& peer : worker->peers()) members.push_back(peer.name);
  using treadle::group::Algorithm;
  const auto group =
      treadle::ProcessGroup::make(*worker, members, {.algorithm = isRing ? Algorithm::kRing : Algorithm::kAutomatic});
  const auto size = static_cast<int32_t>(members.size());
  std::vector<int32_t> data(bytes / sizeof(int32_t));
  const Sums sums = isService ? byService(*worker, data.size()) : byGroup(group);
  for (int round = 0; round < rounds; ++round) {
    std::fill(data.begin(), data.end(), (worker->self().rank + 1) * (round + 1));
    barrier(group).wait();
    const long begin = treadle::netbed::microseconds();
    sums.all(data);
    const long end = treadle::netbed::microseconds();
    barrier(group).wait();  // nobody looks through its sums while others are being timed
    treadle::netbed::check(data, size * (size + 1) / 2 * (round + 1));
    treadle::netbed::print(round, begin, end);
  }
  sums.end();
  worker->shutdown();
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "job: %s\n", error.what());
  return 1;
}

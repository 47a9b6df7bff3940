// Collective operations on tensors of all workers of the job; bench/peers/torch_gloo.py measures the same of PyTorch.
// Started by `treadle run -n MEMBERS`; rank 0 prints. A tensor is written anew before each operation, as gradients are.

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <map>
#include <stdexcept>

#include "bench/ours/measure.h"
#include "treadle/group.h"
#include "treadle/rpc.h"

namespace {

constexpr int64_t kFloatsPerKilobyte = 256;
const std::map<std::string, int64_t> kSizes = {{"4KB", 4}, {"1MB", 1 << 10}, {"10MB", 10 << 10}, {"100MB", 100 << 10}};

struct Job {
  const treadle::ProcessGroup& group;
  bool prints;
};

// An operation that takes longer is repeated less often; bench/peers/torch_gloo.py does the same.
int repetitionsOf(int64_t kilobytes, int repetitions) {
  return repetitions * (kilobytes <= 4 ? 50 : kilobytes <= 10 << 10 ? 3 : 1);
}

void allReduceOf(const Job& job, const std::string& size, int repetitions) {
  const int64_t kilobytes = kSizes.at(size);
  const double members = job.group.size();
  at::Tensor tensor = at::empty({kilobytes * kFloatsPerKilobyte});
  const auto write = [&] {
    tensor.fill_(job.group.rank() + 1);
    treadle::barrier(job.group).wait();
  };
  const int warmUp = 3;
  bench::Series series = bench::timed(warmUp, repetitionsOf(kilobytes, repetitions), write,
                                      [&] { treadle::allReduce(job.group, tensor).wait(); });
  const double sum = members * (members + 1) / 2;
  if (tensor.min().item<double>() != sum || tensor.max().item<double>() != sum) throw std::runtime_error("a wrong sum");
  if (job.prints) bench::print("allreduce_" + std::to_string(job.group.size()) + "x" + size, std::move(series));
}

}  // namespace

int main(int argc, char** argv) try {
  CLI::App app("Collective operations; start it with: treadle run -n MEMBERS -- PROGRAM");
  std::vector<std::string> cases;
  int repetitions = 20;
  app.add_option("--cases", cases, "allreduce_<members>x<4KB, 1MB, 10MB or 100MB>")->delimiter(',')->required();
  app.add_option("--repetitions", repetitions, "of 100 MB")->check(CLI::PositiveNumber);
  CLI11_PARSE(app, argc, argv);
  at::set_num_threads(1);
  auto worker = treadle::join({});
  std::vector<std::string> members;
  for (const treadle::WorkerInfo& peer : worker->peers()) members.push_back(peer.name);
  auto group = treadle::ProcessGroup::make(*worker, members);
  for (const std::string& name : cases)
    allReduceOf({group, worker->self().rank == 0}, name.substr(name.find('x') + 1), repetitions);
  worker->shutdown();
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "bench: %s\n", error.what());
  return 1;
}

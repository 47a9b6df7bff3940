// Collective operations on tensors of all workers of the job; bench/peers/torch_gloo.py measures the same of PyTorch.
// Started by `treadle run -n MEMBERS`; rank 0 prints. A tensor is written anew before each operation, as gradients are.

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <functional>
#include <map>
#include <stdexcept>

#include "bench/ours/measure.h"
#include "treadle/group.h"
#include "treadle/rpc.h"

namespace {

constexpr int64_t kMegabyte = 1 << 18;  // in floats
const std::map<std::string, int64_t> kSizes = {
    {"100floats", 100}, {"4KB", 1 << 10}, {"1MB", kMegabyte}, {"10MB", 10 * kMegabyte}, {"100MB", 100 * kMegabyte}};
// The last one to get the data on its way around a ring or along a tree is rank 0, which is measured.
constexpr int kRoot = 1;

struct Job {
  const treadle::ProcessGroup& group;
  bool prints;
};

// An operation that takes longer is repeated less often; bench/peers/torch_gloo.py does the same.
int repetitionsOf(int64_t floats, int repetitions) {
  return repetitions * (floats <= 1 << 10 ? 50 : floats <= 10 * kMegabyte ? 3 : 1);
}

struct Operation {
  int64_t given = 1, got = 1;  // by what the size of the case is divided
  std::function<treadle::Future<void>(at::Tensor& input, at::Tensor& output)> start;
};

// The size of a case is that of the larger side; of an all-reduce and a broadcast, which are in place, both.
Operation operationOf(const std::string& name, const treadle::ProcessGroup& group) {
  const int64_t parts = group.size();
  if (name == "allreduce") return {1, 1, [&](auto& in, auto&) { return treadle::allReduce(group, in); }};
  if (name == "broadcast") return {1, 1, [&](auto& in, auto&) { return treadle::broadcast(group, in, kRoot); }};
  if (name == "alltoall") return {1, 1, [&](auto& in, auto& out) { return treadle::allToAll(group, in, out); }};
  if (name == "reducescatter")
    return {1, parts, [&](auto& in, auto& out) { return treadle::reduceScatter(group, in, out); }};
  if (name == "allgather") return {parts, 1, [&](auto& in, auto& out) { return treadle::allGather(group, in, out); }};
  throw std::runtime_error("there is no operation " + name);
}

// Every member gives its rank + 1 everywhere. An element of the result on rank 0, in the part `part`.
double expected(const std::string& name, int members, int64_t part) {
  if (name == "allreduce" || name == "reducescatter") return members * (members + 1) / 2.0;
  return name == "broadcast" ? kRoot + 1 : static_cast<double>(part + 1);
}

void check(const std::string& name, int members, const at::Tensor& result) {
  const bool parts = name == "allgather" || name == "alltoall";
  const at::Tensor rows = result.view({parts ? members : 1, -1});
  for (int64_t part = 0; part < rows.size(0); ++part) {
    const double want = expected(name, members, part);
    if (rows[part].min().item<double>() != want || rows[part].max().item<double>() != want)
      throw std::runtime_error(name + " brought a wrong value");
  }
}

// By the names of `treadle plan`.
std::map<std::string, treadle::group::Algorithm> algorithms() {
  std::map<std::string, treadle::group::Algorithm> named;
  for (uint8_t value = 1; treadle::group::isAlgorithm(value); ++value) {
    const auto algorithm = static_cast<treadle::group::Algorithm>(value);
    named.emplace(nameOf(algorithm), algorithm);
  }
  return named;
}

void measure(const Job& job, const std::string& row, int repetitions) {
  const size_t cut = row.find('_');
  const std::string name = row.substr(0, cut), size = row.substr(row.find('x', cut) + 1);
  const int64_t floats = kSizes.at(size);
  const Operation operation = operationOf(name, job.group);
  const bool inPlace = name == "allreduce" || name == "broadcast";
  at::Tensor input = at::empty({floats / operation.given}), output = at::empty({inPlace ? 0 : floats / operation.got});
  const auto write = [&] {
    input.fill_(job.group.rank() + 1);
    output.zero_();
    treadle::barrier(job.group).wait();
  };
  const int warmUp = 3;
  bench::Series series =
      bench::timed(warmUp, repetitionsOf(floats, repetitions), write, [&] { operation.start(input, output).wait(); });
  if (job.prints) check(name, job.group.size(), inPlace ? input : output);
  if (job.prints) bench::print(row, std::move(series));
}

}  // namespace

int main(int argc, char** argv) try {
  CLI::App app("Collective operations; start it with: treadle run -n MEMBERS -- PROGRAM");
  std::vector<std::string> cases;
  int repetitions = 20;
  treadle::GroupOptions options;
  app.add_option("--cases", cases, "<operation>_<members>x<100floats, 4KB, 1MB, 10MB or 100MB>")
      ->delimiter(',')
      ->required();
  app.add_option("--repetitions", repetitions, "of 100 MB")->check(CLI::PositiveNumber);
  app.add_option("--algorithm", options.algorithm, "forces it, as GroupOptions::algorithm does")
      ->transform(CLI::CheckedTransformer(algorithms()));
  treadle::JoinOptions join;
  app.add_option("--listen", join.listenAddress, "address, when the workers are on different hosts: tcp://10.0.0.7:0");
  CLI11_PARSE(app, argc, argv);
  join.allowPlaintext = join.listenAddress.has_value();
  at::set_num_threads(1);
  auto worker = treadle::join(join);
  std::vector<std::string> members;
  for (const treadle::WorkerInfo& peer : worker->peers()) members.push_back(peer.name);
  auto group = treadle::ProcessGroup::make(*worker, members, options);
  for (const std::string& name : cases) measure({group, worker->self().rank == 0}, name, repetitions);
  worker->shutdown();
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "bench: %s\n", error.what());
  return 1;
}

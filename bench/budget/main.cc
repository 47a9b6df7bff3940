// What operations cost the caller and the callee in allocations, locks and system calls: the budgets that stand at the
// top of the files, counted. Two workers, of whom rank 0 asks rank 1; started by `treadle run -n 2` (make
// bench-budget).
//
// Counts are of the whole process, all threads, as means over many operations; those of asking for the counts are taken
// off. How often a waiting caller looks (recv, recvmsg, yield) is a matter of time and differs from run to run.

#include <ATen/Parallel.h>
#include <ATen/ops/ones.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <functional>
#include <thread>

#include "bench/budget/count.h"
#include "treadle/core/cluster/membership.h"
#include "treadle/rpc.h"

namespace {

using bench::Counts;
using bench::kCounted;
using treadle::Worker;

constexpr int kServer = 1;
constexpr int64_t kFloats = 1 << 20;  // of a tensor of 4 MiB
constexpr double kPieces = 16;        // that it travels in, on lanes

void nothing() {}
at::Tensor identity(at::Tensor tensor) { return tensor; }
double first(const at::Tensor& tensor) { return tensor[0].item<double>(); }
std::vector<uint64_t> countsHere() {
  Counts now = bench::counts();
  return {now.begin(), now.end()};
}

using Means = std::array<double, kCounted>;
struct Costs {
  Means caller{}, callee{};
};
using Operation = std::function<void(int times)>;

// What `operation` costs once, of `times`.
Costs total(Worker& worker, const Operation& operation, int times) {
  Costs costs;
  std::vector<uint64_t> there = worker.call<&countsHere>(kServer);
  Counts here = bench::counts();
  operation(times);
  Counts hereNow = bench::counts();
  std::vector<uint64_t> thereNow = worker.call<&countsHere>(kServer);
  for (size_t i = 0; i < kCounted; ++i) {
    costs.caller[i] = static_cast<double>(hereNow[i] - here[i]);
    costs.callee[i] = static_cast<double>(thereNow[i] - there[i]);
  }
  return costs;
}

// Per operation; the cost of none, asking the callee included, is taken off.
Costs costsOf(Worker& worker, const Operation& operation, int times, double perOperation = 1) {
  operation(times / 10 + 2);  // what is made once is there
  Costs none = total(worker, [](int) {}, 0), all = total(worker, operation, times);
  auto mean = [&](const Means& sum, const Means& rest) {
    Means means;
    for (size_t i = 0; i < kCounted; ++i) means[i] = std::max(0.0, sum[i] - rest[i]) / times / perOperation;
    return means;
  };
  return {mean(all.caller, none.caller), mean(all.callee, none.callee)};
}

// ---- how it is told

bool json = false;

void print(const std::string& operation, const char* side, const Means& means) {
  if (json) {
    std::printf(R"({"operation": "%s", "side": "%s")", operation.c_str(), side);
    for (size_t i = 0; i < kCounted; ++i) std::printf(R"(, "%s": %.3f)", bench::kCountedNames[i], means[i]);
    std::printf("}\n");
    return;
  }
  std::printf("%-34s %-7s", operation.c_str(), side);
  for (size_t i = 0; i < bench::kFirstSystemCall; ++i) std::printf(" %11.2f", means[i]);
  std::printf("  ");
  for (size_t i = bench::kFirstSystemCall; i < kCounted; ++i)
    if (means[i] >= 0.005) std::printf(" %s %.2f", bench::kCountedNames[i], means[i]);
  std::printf("\n");
}

void print(const std::string& operation, const Costs& costs) {
  print(operation, "caller", costs.caller);
  print(operation, "callee", costs.callee);
  std::fflush(stdout);
}

void printHead() {
  if (json) return;
  std::printf("%-34s %-7s", "operation", "side");
  for (size_t i = 0; i < bench::kFirstSystemCall; ++i) std::printf(" %11s", bench::kCountedNames[i]);
  std::printf("   system calls\n");
}

// ---- operations

void measureCalls(Worker& worker) {
  auto blocking = [&](int times) {
    for (int i = 0; i < times; ++i) worker.call<&nothing>(kServer);
  };
  auto inFlight = [&](int times) {
    std::vector<treadle::Future<void>> futures;
    futures.reserve(static_cast<size_t>(times));
    for (int i = 0; i < times; ++i) futures.push_back(worker.async<&nothing>(kServer));
    for (auto& future : futures) future.wait();
  };
  auto lazily = [&](int times) {
    std::vector<treadle::Future<void>> futures;
    for (int i = 0; i < times; ++i) futures.push_back(worker.with({.lazy = true}).async<&nothing>(kServer));
    for (auto& future : futures) future.wait();
  };
  print("empty call", costsOf(worker, blocking, 2'000));
  print("empty call, 2,000 in flight", costsOf(worker, inFlight, 2'000));
  print("lazy notice, 2,000 at once", costsOf(worker, lazily, 2'000));
}

// The worker of the highest rank found by its name, as a call does that names its callee.
void measureNames(Worker& worker, int workers) {
  auto reactor = treadle::valueOrThrow(treadle::io::Reactor::make());
  treadle::cluster::MembershipOptions options;
  options.open = true;
  const auto nameOf = [](int rank) { return "worker" + std::to_string(rank); };
  treadle::cluster::Membership membership(*reactor, {nameOf(0), 0}, workers, options);
  for (int rank = 1; rank < workers; ++rank) {
    membership.expect({nameOf(rank), rank});
    membership.welcome(rank);
  }
  const auto find = [&, name = nameOf(workers - 1)](int times) {
    for (int i = 0; i < times; ++i) treadle::valueOrThrow(membership.rankOf(name));
  };
  print("a name among " + std::to_string(workers) + " workers", costsOf(worker, find, 2'000));
}

// By the way that the channels leave: `way` is its name.
void measureTensors(Worker& worker, const std::string& way) {
  at::Tensor tensor = at::ones({kFloats});
  auto thereAndBack = [&](int times) {
    for (int i = 0; i < times; ++i) worker.call<&identity>(kServer, tensor);
  };
  print("4 MiB there and back, " + way, costsOf(worker, thereAndBack, 100));
  if (way == "on lanes") print("  the same, per piece of two ways", costsOf(worker, thereAndBack, 100, 2 * kPieces));
}

void measureSharing(Worker& worker) {
  at::Tensor tensor = at::ones({kFloats});
  // The caller keeps what it got until the next is there: its block goes back by itself.
  auto kept = [&](int times) {
    at::Tensor last;
    for (int i = 0; i < times; ++i) {
      last = worker.call<&identity>(kServer, tensor);
      std::this_thread::sleep_for(std::chrono::milliseconds(3));
      last.reset();
      std::this_thread::sleep_for(std::chrono::milliseconds(3));
    }
  };
  auto given = [&](int times) {
    for (int i = 0; i < times; ++i) worker.call<&first>(kServer, treadle::emptyShared({kFloats}));
  };
  auto referred = [&](int times) {
    for (int i = 0; i < times; ++i) worker.remote<&identity>(kServer, tensor).toHere();
  };
  print("  the same, and idle in between", costsOf(worker, kept, 50));
  print("4 MiB made by treadle::emptyShared, given", costsOf(worker, given, 200));
  print("4 MiB kept there and fetched", costsOf(worker, referred, 100));
}

// A fifth of `heartbeatTimeout` without a call.
void measureHeartbeats(Worker& worker, treadle::Duration heartbeatTimeout) {
  auto idle = [&](int times) { std::this_thread::sleep_for(heartbeatTimeout / 5 * times); };
  print("idle, per tick of heartbeats", costsOf(worker, idle, 6));
}

struct Options {
  bool core = false, lanes = false, offers = false, heartbeats = false;
};

void run(const Options& options) {
  auto functions = treadle::Functions().add<&nothing>("nothing").add<&countsHere>("countsHere");
  if (!options.core) functions.add<&identity>("identity").add<&first>("first");
  treadle::JoinOptions join{.functions = std::move(functions), .launch = valueOrThrow(treadle::Launch::detect())};
  join.name = "budget" + std::to_string(join.launch->rank);
  // Else no heartbeat is among what is counted.
  join.heartbeatTimeout = std::chrono::seconds(options.heartbeats ? 5 : 60);
  if (options.lanes) join.channels = treadle::valueOrThrow(treadle::Channels::parse("tcp,lanes"));
  if (options.offers) join.channels = treadle::valueOrThrow(treadle::Channels::parse("unix,cma"));
  auto worker = options.core ? Worker::join(join) : treadle::join(join);
  if (worker->self().rank == 0) {
    printHead();
    if (options.heartbeats) {
      measureHeartbeats(*worker, join.heartbeatTimeout);
    } else {
      measureCalls(*worker);
      for (int workers : {2, 200}) measureNames(*worker, workers);
      if (!options.core) measureTensors(*worker, options.lanes ? "on lanes" : options.offers ? "read" : "shared");
      if (!options.core && !options.lanes && !options.offers) measureSharing(*worker);
    }
  }
  worker->shutdown();
}

}  // namespace

int main(int argc, char** argv) try {
  CLI::App app("Allocations, locks and system calls per operation; start it with: treadle run -n 2 -- PROGRAM");
  Options options;
  app.add_flag("--core", options.core, "workers without tensors: calls without what autograd adds");
  app.add_flag("--lanes", options.lanes, "TCP and lanes in place of UNIX sockets and shared memory");
  app.add_flag("--offers", options.offers, "tensors that the callee reads from the caller's memory");
  app.add_flag("--heartbeats", options.heartbeats, "idle workers");
  app.add_flag("--json", json, "lines of JSON in place of the table");
  CLI11_PARSE(app, argc, argv);
  at::set_num_threads(1);
  run(options);
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "bench: %s\n", error.what());
  return 1;
}

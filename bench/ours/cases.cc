#include "bench/ours/cases.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/rand.h>

#include <chrono>

namespace bench {
namespace {

using treadle::Future;
using treadle::RRef;
using treadle::Worker;

constexpr int kServer = 1;

void nothing() {}
at::Tensor identity(at::Tensor tensor) { return tensor; }
// The callee reads the caller's tensor by reference.
int64_t fetched(const RRef<at::Tensor>& tensor) { return tensor.toHere().numel(); }

double since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count();
}

// Microseconds of `repetitions` runs of `body` after `warmUp` others; `prepare` goes before each and is not counted.
template <class Prepare, class Body>
std::vector<double> timed(int warmUp, int repetitions, Prepare prepare, Body body) {
  std::vector<double> times;
  for (int i = 0; i < warmUp + repetitions; ++i) {
    prepare();
    auto begin = std::chrono::steady_clock::now();
    body();
    if (i >= warmUp) times.push_back(since(begin));
  }
  return times;
}

std::vector<double> emptyCall(Worker& worker, int repetitions) {
  return timed(500, 1000 * repetitions, [] {}, [&] { worker.call<&nothing>(kServer); });
}

// Time per call with many in flight: one client thread.
std::vector<double> asyncCall(Worker& worker, int repetitions) {
  constexpr int kCalls = 20'000;
  std::vector<double> times = timed(
      1, repetitions, [] {},
      [&] {
        std::vector<Future<void>> futures;
        futures.reserve(kCalls);
        for (int i = 0; i < kCalls; ++i) futures.push_back(worker.async<&nothing>(kServer));
        for (Future<void>& future : futures) future.wait();
      });
  for (double& time : times) time /= kCalls;
  return times;
}

template <int64_t Megabytes>
std::vector<double> identityOf(Worker& worker, int repetitions) {
  at::Tensor tensor = at::rand({Megabytes << 18});
  return timed(3, repetitions, [&] { tensor.uniform_(); }, [&] { worker.call<&identity>(kServer, tensor); });
}

// In a fresh pair of processes: the first transfer of that size.
std::vector<double> firstIdentity(Worker& worker, int) {
  at::Tensor tensor = at::rand({40 << 18});
  return timed(0, 1, [] {}, [&] { worker.call<&identity>(kServer, tensor); });
}

// Made in shared memory, and given away each time: no copy at all.
std::vector<double> sharedIdentity(Worker& worker, int repetitions) {
  at::Tensor tensor = treadle::empty({40 << 18});
  return timed(
      3, repetitions, [&] { tensor.uniform_(); }, [&] { tensor = worker.call<&identity>(kServer, std::move(tensor)); });
}

std::vector<double> tenIdentities(Worker& worker, int repetitions) {
  at::Tensor tensor = at::rand({40 << 18});
  return timed(
      1, repetitions, [&] { tensor.uniform_(); },
      [&] {
        std::vector<Future<at::Tensor>> futures;
        for (int i = 0; i < 10; ++i) futures.push_back(worker.async<&identity>(kServer, tensor));
        for (auto& future : futures) future.wait();
      });
}

std::vector<double> fetch(Worker& worker, int repetitions) {
  at::Tensor tensor = at::rand({40 << 18});
  RRef<at::Tensor> reference = worker.own(tensor);
  return timed(3, repetitions, [&] { tensor.uniform_(); }, [&] { worker.call<&fetched>(kServer, reference); });
}

}  // namespace

treadle::Functions served() {
  return treadle::Functions().add<&nothing>("nothing").add<&identity>("identity").add<&fetched>("fetched");
}

const std::map<std::string, Case>& cases() {
  static const std::map<std::string, Case> all = {
      {"call_empty", {"us", &emptyCall}},
      {"async_call", {"us", &asyncCall}},
      {"identity_4MB", {"us", &identityOf<4>}},
      {"identity_40MB", {"us", &identityOf<40>}},
      {"identity_400MB", {"us", &identityOf<400>}},
      {"identity_40MB_shared", {"us", &sharedIdentity}},
      {"identity_40MB_first", {"us", &firstIdentity}},
      {"concurrent_10x40MB", {"us", &tenIdentities}},
      {"rref_to_here_40MB", {"us", &fetch}},
  };
  return all;
}

}  // namespace bench

// Tensors there and back. The source is an ordinary tensor that is written anew before each repetition, also before
// each of the limit that is measured beside it.
#include <ATen/ops/empty_like.h>
#include <ATen/ops/rand.h>

#include <cstring>

#include "bench/limits/echo.h"
#include "bench/ours/cases.h"

namespace bench {
namespace {

using treadle::Future;
using treadle::RRef;
using treadle::Worker;

constexpr int kTensorWarmUp = 3;

at::Tensor tensorOf(int64_t megabytes) { return at::rand({megabytes * kFloatsPerMegabyte}); }

void copy(at::Tensor& to, const at::Tensor& from) { std::memcpy(to.data_ptr(), from.data_ptr(), from.nbytes()); }

template <int64_t Megabytes>
std::vector<Series> identityOf(Worker& worker, int repetitions) {
  int count = Megabytes < 40 ? 3 * repetitions : Megabytes > 40 ? few(repetitions) : repetitions;
  at::Tensor tensor = tensorOf(Megabytes), target = tensorOf(Megabytes);
  return alternated(
      "memcpy", kTensorWarmUp, count, [&] { tensor.uniform_(); }, [&] { worker.call<&identity>(kServer, tensor); },
      [&] { copy(target, tensor); });
}

// In a fresh pair of processes: the first transfer of that size, and then warm copies.
std::vector<Series> firstIdentity(Worker& worker, int) {
  at::Tensor tensor = tensorOf(40), target = tensorOf(40);
  Series first = timed(0, 1, [] {}, [&] { worker.call<&identity>(kServer, tensor); });
  Series copies = timed(kTensorWarmUp, 9, [&] { tensor.uniform_(); }, [&] { copy(target, tensor); });
  copies.of = "memcpy";
  return {first, copies};
}

// Made in shared memory, and given away each time: no copy at all. A call without a tensor that comes after the same
// pause is the limit.
std::vector<Series> sharedIdentity(Worker& worker, int repetitions) {
  at::Tensor tensor = treadle::emptyShared({40 * kFloatsPerMegabyte});
  return alternated(
      "call_empty", kTensorWarmUp, repetitions, [&] { tensor.uniform_(); },
      [&] { tensor = worker.call<&identity>(kServer, std::move(tensor)); }, [&] { worker.call<&nothing>(kServer); });
}

// The limit reads all 40 MB before it writes them back, as a function that is given a tensor has to.
std::vector<Series> tcpIdentity(Worker& worker, int repetitions) {
  at::Tensor tensor = tensorOf(40);
  Echo echo(Echo::Way::kTcp, tensor.nbytes());
  return alternated(
      "naive_tcp", kTensorWarmUp, repetitions, [&] { tensor.uniform_(); },
      [&] { worker.call<&identity>(kServer, tensor); }, [&] { echo.roundTrip(tensor.data_ptr()); });
}

// Ten at once, and the most memory that either process held meanwhile.
std::vector<Series> tenIdentities(Worker& worker, int repetitions) {
  at::Tensor tensor = tensorOf(40);
  resetPeak();
  worker.call<&resetPeak>(kServer);
  Series series = timed(
      1, few(repetitions), [&] { tensor.uniform_(); },
      [&] {
        std::vector<Future<at::Tensor>> futures;
        for (int i = 0; i < 10; ++i) futures.push_back(worker.async<&identity>(kServer, tensor));
        for (auto& future : futures) future.wait();
      });
  auto caller = static_cast<double>(peakBytes()), callee = static_cast<double>(worker.call<&peakBytes>(kServer));
  return {series, {"peak_of_caller", "bytes", {caller}}, {"peak_of_callee", "bytes", {callee}}};
}

// The callee fetches the caller's tensor, compared with the same tensor as argument and result.
std::vector<Series> fetch(Worker& worker, int repetitions) {
  at::Tensor tensor = tensorOf(40);
  RRef<at::Tensor> reference = worker.makeRRef(tensor);
  return alternated(
      "identity_40MB", kTensorWarmUp, repetitions, [&] { tensor.uniform_(); },
      [&] { worker.call<&fetched>(kServer, reference); }, [&] { worker.call<&identity>(kServer, tensor); });
}

}  // namespace

void addTensorCases(Cases& cases) {
  cases["identity_4MB"] = &identityOf<4>;
  cases["identity_40MB"] = &identityOf<40>;
  cases["identity_400MB"] = &identityOf<400>;
  cases["identity_40MB_shared"] = &sharedIdentity;
  cases["identity_40MB_first"] = &firstIdentity;
  cases["identity_40MB_tcp"] = &tcpIdentity;
  cases["identity_40MB_tls"] = &identityOf<40>;  // with --tls
  cases["concurrent_10x40MB"] = &tenIdentities;
  cases["rref_to_here_40MB"] = &fetch;
}

}  // namespace bench

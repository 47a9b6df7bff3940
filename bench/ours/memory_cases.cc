// What is left behind by many calls: resident memory of both processes after 1,000 and after 10,000 mixed calls.
#include <ATen/ops/rand.h>

#include <random>

#include "bench/ours/cases.h"

namespace bench {
namespace {

using treadle::Future;
using treadle::RRef;
using treadle::Worker;

at::Tensor tensorUpTo(std::mt19937& random, int64_t floats) {
  return at::rand({std::uniform_int_distribution<int64_t>(1, floats)(random)});
}

void tenAtOnce(Worker& worker, const at::Tensor& tensor) {
  std::vector<Future<at::Tensor>> futures;
  for (int i = 0; i < 10; ++i) futures.push_back(worker.async<&identity>(kServer, tensor));
  for (auto& future : futures) future.wait();
}

// Of 100 calls 50 are empty, 30 have tensors of up to 64 KiB, 15 of up to 4 MiB, 4 leave or fetch a reference, and one
// stands for ten at once.
void mixedCall(Worker& worker, std::mt19937& random) {
  auto kind = random() % 100;
  if (kind < 50) {
    worker.call<&nothing>(kServer);
  } else if (kind < 80) {
    worker.call<&identity>(kServer, tensorUpTo(random, 16 << 10));
  } else if (kind < 95) {
    worker.call<&identity>(kServer, tensorUpTo(random, 4 * kFloatsPerMegabyte));
  } else if (kind < 97) {
    worker.remote<&identity>(kServer, tensorUpTo(random, kFloatsPerMegabyte)).toHere();
  } else if (kind < 99) {
    worker.call<&fetched>(kServer, worker.makeRRef(tensorUpTo(random, kFloatsPerMegabyte)));
  } else {
    tenAtOnce(worker, tensorUpTo(random, kFloatsPerMegabyte));
  }
}

Series residentAfter(Worker& worker, std::mt19937& random, int calls, const char* of) {
  for (int i = 0; i < calls; ++i) mixedCall(worker, random);
  return {of, "bytes", {static_cast<double>(residentBytes() + worker.call<&residentBytes>(kServer))}};
}

std::vector<Series> residentMemory(Worker& worker, int) {
  std::mt19937 random(7);
  Series early = residentAfter(worker, random, 1'000, "rss_after_1000");
  Series late = residentAfter(worker, random, 9'000, "");
  return {late, early};
}

}  // namespace

void addMemoryCases(Cases& cases) { cases["rss_after_10000"] = &residentMemory; }

}  // namespace bench

#pragma once
// What tests of summation services of whole workers share: a job with machines for them, tensors, and their sums.

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "tests/support/worker_job.h"
#include "treadle/core/summation/service.h"

namespace treadle::summation_service_test {

using test::WorkerJob;

inline constexpr Duration kPatience = std::chrono::seconds(60);

inline Status failureOf(Future<void> future) try {
  future.wait(kPatience);
  return {};
} catch (const Error& error) {
  return error.status();
}

inline std::vector<std::string> numbered(const std::string& name, size_t count) {
  std::vector<std::string> names;
  for (size_t i = 0; i < count; ++i) names.push_back(name + std::to_string(i));
  return names;
}

// Workers w0, w1, ... and servers s0, s1, ... with the ranks after them.
class ServiceJob {
 public:
  ServiceJob(size_t workers, size_t servers, const WorkerJob::Adjust& adjust = {})
      : options{.workers = numbered("w", workers), .servers = numbered("s", servers)},
        job(namesOf(options), {}, adjust) {}

  static std::vector<std::string> namesOf(const SummationOptions& options) {
    std::vector<std::string> names = options.workers;
    names.insert(names.end(), options.servers.begin(), options.servers.end());
    return names;
  }
  bool isServer(const Worker& worker) const { return worker.self().name.front() == 's'; }

  SummationService make(Worker& worker, const std::vector<SummationTensor>& tensors) {
    return SummationService::make(worker, options, isServer(worker) ? std::vector<SummationTensor>() : tensors);
  }
  // What each machine's attempt ends with, by rank.
  template <class F>
  std::vector<Status> outcomes(F f) {
    std::vector<Status> all(job.size());
    job.onAll([&](Worker& worker) {
      try {
        f(worker);
      } catch (const Error& error) {
        all[static_cast<size_t>(worker.self().rank)] = error.status();
      }
    });
    return all;
  }

  SummationOptions options;
  WorkerJob job;
};

inline const std::vector<SummationTensor> kTensors = {
    {.name = "weight", .type = group::DataType::kFloat32, .elements = 300'000},
    {.name = "empty", .type = group::DataType::kFloat64, .elements = 0},
    {.name = "short", .type = group::DataType::kInt16, .elements = 70'001},
    {.name = "count", .type = group::DataType::kInt64, .elements = 3}};

// A number that depends on the worker, the round and the place, small enough to be added without rounding.
template <class T>
std::vector<T> valuesOf(int worker, int round, size_t count) {
  std::vector<T> values(count);
  for (size_t i = 0; i < count; ++i)
    values[i] = static_cast<T>(
        static_cast<float>((static_cast<size_t>(worker + 1) * 7 + i * 3 + static_cast<size_t>(round)) % 32));
  return values;
}

template <class T>
std::vector<T> sumOfAll(size_t workers, int round, size_t count) {
  std::vector<T> sums(count);
  for (size_t worker = 0; worker < workers; ++worker) {
    const std::vector<T> values = valuesOf<T>(static_cast<int>(worker), round, count);
    for (size_t i = 0; i < count; ++i)
      sums[i] = static_cast<T>(static_cast<float>(sums[i]) + static_cast<float>(values[i]));
  }
  return sums;
}

// Three rounds of all tensors, in an order that differs between workers.
inline void sumAndCheck(SummationService& service, int rank, size_t workers) {
  for (int round = 0; round < 3; ++round) {
    auto weight = valuesOf<float>(rank, round, 300'000);
    auto shorts = valuesOf<int16_t>(rank, round, 70'001);
    auto count = valuesOf<int64_t>(rank, round, 3);
    std::vector<double> empty;
    std::vector<std::function<Future<void>()>> sums = {[&] { return service.sum("weight", std::span(weight)); },
                                                       [&] { return service.sum("short", std::span(shorts)); },
                                                       [&] { return service.sum("count", std::span(count)); },
                                                       [&] { return service.sum("empty", std::span(empty)); }};
    if (rank % 2 == 1) std::reverse(sums.begin(), sums.end());
    std::vector<Future<void>> futures;
    for (const auto& sum : sums) futures.push_back(sum());
    for (auto& future : futures) future.wait(kPatience);
    EXPECT_EQ(sumOfAll<float>(workers, round, 300'000), weight);
    EXPECT_EQ(sumOfAll<int64_t>(workers, round, 3), count);
    EXPECT_EQ(sumOfAll<int16_t>(workers, round, 70'001), shorts);
  }
}

}  // namespace treadle::summation_service_test

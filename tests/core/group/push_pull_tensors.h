#pragma once
// Tensors of all members of a group whose sums are known, and pushPull of them.

#include <gtest/gtest.h>

#include <numeric>

#include "tests/core/group/group_job.h"

namespace treadle::test {

inline std::string nameOf(size_t tensor) { return "layer" + std::to_string(tensor) + ".weight"; }

// A tensor of one member. Its values are whole numbers whose sums are exact in any order.
inline std::vector<float> valuesOf(size_t rank, size_t tensor, size_t count) {
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = static_cast<float>((i * 7 + tensor * 3 + rank * 11) % 100);
  return values;
}

inline std::vector<float> sumOf(size_t members, size_t tensor, size_t count) {
  std::vector<float> sum(count);
  for (size_t rank = 0; rank < members; ++rank) {
    const std::vector<float> values = valuesOf(rank, tensor, count);
    for (size_t i = 0; i < count; ++i) sum[i] += values[i];
  }
  return sum;
}

using Tensors = std::vector<std::vector<float>>;

// Each rank's reason.
inline std::vector<Status> failures(const std::vector<Future<void>>& futures) {
  std::vector<Status> all;
  for (const Future<void>& future : futures) all.push_back(failureOf(future));
  return all;
}

class PushPullTest : public ::testing::Test {
 protected:
  // All tensors of all members, which each offers in an order of its own.
  void sumAll(std::vector<ProcessGroup>& groups, const std::vector<size_t>& counts) {
    std::vector<Tensors> data(groups.size());
    std::vector<Future<void>> futures;
    for (size_t rank = 0; rank < groups.size(); ++rank) {
      for (size_t tensor = 0; tensor < counts.size(); ++tensor)
        data[rank].push_back(valuesOf(rank, tensor, counts[tensor]));
      std::vector<size_t> order(counts.size());
      std::iota(order.begin(), order.end(), size_t{0});
      std::shuffle(order.begin(), order.end(), random_);
      for (size_t tensor : order)
        futures.push_back(pushPull(groups[rank], nameOf(tensor), std::span(data[rank][tensor])));
    }
    waitAll(futures);
    for (size_t tensor = 0; tensor < counts.size(); ++tensor) {
      const std::vector<float> sum = sumOf(groups.size(), tensor, counts[tensor]);
      for (size_t rank = 0; rank < groups.size(); ++rank) ASSERT_EQ(data[rank][tensor], sum) << tensor;
    }
  }
  // One name, offered by each of the members.
  static std::vector<Future<void>> offerOnAll(std::vector<ProcessGroup>& groups, const std::string& name,
                                              std::vector<std::vector<float>>& data) {
    std::vector<Future<void>> futures;
    for (size_t rank = 0; rank < groups.size(); ++rank)
      futures.push_back(pushPull(groups[rank], name, std::span(data[rank])));
    return futures;
  }
  void expectToGoOn(std::vector<ProcessGroup>& groups) { sumAll(groups, {10, 2'000'000}); }

  std::mt19937 random_{seedOfRun()};
};

}  // namespace treadle::test

#pragma once
// Prints on rank 0 how the loss falls: the mean over all ranks, at the first step and after each tenth of the steps.
// One thread.

#include <treadle/group.h>

#include <chrono>
#include <string>

namespace data_parallel {

class LossReport {
 public:
  // Every rank makes one, and reports the same number of steps.
  LossReport(std::string program, treadle::ProcessGroup group, int64_t steps);

  // After each step, with the mean loss of this rank's batch. An operation of the group, where a line is due.
  void step(const at::Tensor& loss);

  // Prints the last line. Whether the loss has fallen since the first step; the same on all ranks.
  bool finish();

 private:
  const std::string program_;
  const treadle::ProcessGroup group_;
  const int64_t steps_;
  int64_t done_ = 0;
  at::Tensor sum_;  // of the steps since the last line
  int64_t summed_ = 0;
  double first_ = 0, last_ = 0;
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

}  // namespace data_parallel

#include "examples/data_parallel/loss_report.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <iostream>

namespace data_parallel {

LossReport::LossReport(std::string program, treadle::ProcessGroup group, int64_t steps)
    : program_(std::move(program)), group_(std::move(group)), steps_(steps), sum_(at::zeros({1})) {}

void LossReport::step(const at::Tensor& loss) {
  ++done_;
  ++summed_;
  sum_ += loss.detach();
  const int64_t tenth = std::max<int64_t>(1, steps_ / 10);
  if (done_ != 1 && done_ % tenth != 0 && done_ != steps_) return;
  // Averaged here and not in each step: the averages of the gradients are all that a step has to wait for.
  treadle::allReduce(group_, sum_, treadle::ReduceOp::kAverage).wait();
  last_ = sum_.item<double>() / static_cast<double>(summed_);
  if (done_ == 1) first_ = last_;
  sum_.zero_();
  summed_ = 0;
  if (group_.rank() == 0) std::cout << "step " << done_ << " of " << steps_ << ": loss " << last_ << std::endl;
}

bool LossReport::finish() {
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin_;
  const bool fell = last_ < first_;
  if (group_.rank() == 0)
    std::cout << program_ << ": the loss " << (fell ? "fell" : "did not fall") << ", from " << first_ << " to " << last_
              << " in " << done_ << " steps, " << static_cast<double>(done_) / taken.count() << " steps/s" << std::endl;
  return fell;
}

}  // namespace data_parallel

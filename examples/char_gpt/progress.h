#pragma once
// Shows how a training goes: a line on standard output and one in metrics.jsonl after the first step, each tenth of the
// steps and the last. One object per training, used by its thread alone.

#include <string>

#include "examples/char_gpt/ranks.h"
#include "examples/common/metrics_file.h"
#include "examples/common/stopwatch.h"

namespace char_gpt {

class Progress {
 public:
  // `training`: its name in the lines. `tokensPerStep`: of all ranks. `metrics`: null on a rank that shows nothing;
  // else it outlives this.
  Progress(std::string training, int64_t steps, int64_t tokensPerStep, Ranks ranks, example::MetricsFile* metrics);

  // After each step, with the mean loss of this rank's part of the batch.
  void step(const at::Tensor& loss);
  // Whether a line is due now, for which the caller computes the validation loss.
  bool isDue() const;
  // An operation of the group, for the mean of the losses since the last line.
  void show(double validationLoss);

  double seconds() const { return watch_.seconds(); }

 private:
  void print(double loss, double validationLoss, double tokensPerS, double secondsPerStep);
  void write(double loss, double validationLoss, double tokensPerS);

  const std::string training_;
  const int64_t steps_, tokensPerStep_;
  const Ranks ranks_;
  example::MetricsFile* const metrics_;
  int64_t done_ = 0, shown_ = 0;  // steps: in all, and before the last line
  at::Tensor losses_;             // sum since the last line
  example::Stopwatch watch_;
  double begun_ = 0, stepped_ = 0;  // seconds: when the steps since the last line began, and when the last one ended
};

}  // namespace char_gpt

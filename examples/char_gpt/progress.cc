#include "examples/char_gpt/progress.h"

#include <ATen/ATen.h>

#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>

#include "examples/char_gpt/time_left.h"

namespace char_gpt {

Progress::Progress(std::string training, int64_t steps, int64_t tokensPerStep, Ranks ranks,
                   example::MetricsFile* metrics)
    : training_(std::move(training)),
      steps_(steps),
      tokensPerStep_(tokensPerStep),
      ranks_(std::move(ranks)),
      metrics_(metrics),
      losses_(at::zeros({1}, at::kDouble)) {}

void Progress::step(const at::Tensor& loss) {
  losses_ += loss.detach();
  ++done_;
  stepped_ = watch_.seconds();
}

bool Progress::isDue() const { return isLineDue(done_, steps_); }

void Progress::show(double validationLoss) {
  const auto steps = static_cast<double>(done_ - shown_);
  const double perStep = (stepped_ - begun_) / steps, tokensPerS = static_cast<double>(tokensPerStep_) / perStep;
  // Here and not in each step: the averages of the gradients are all that a step has to wait for.
  ranks_.sum(losses_);
  const double loss = losses_.item<double>() / (steps * ranks_.size());
  if (metrics_ != nullptr) {
    print(loss, validationLoss, tokensPerS, perStep);
    write(loss, validationLoss, tokensPerS);
  }
  losses_.zero_();
  shown_ = done_;
  begun_ = watch_.seconds();  // the validation is not part of the steps' time
}

void Progress::print(double loss, double validationLoss, double tokensPerS, double secondsPerStep) {
  char line[160];
  std::snprintf(line, sizeof line, "step %lld of %lld: loss %.3f, validation loss %.3f, %.0f tokens/s",
                static_cast<long long>(done_), static_cast<long long>(steps_), loss, validationLoss, tokensPerS);
  std::cout << training_ << ": " << line;
  // The first step is slower than the others: it allocates what they use again.
  if (done_ > 1) {
    const double left = secondsLeft(done_, steps_, secondsPerStep, watch_.seconds() - stepped_);
    std::snprintf(line, sizeof line, ", %.0f s left of this training", left);
    std::cout << line;
  }
  std::cout << std::endl;
}

void Progress::write(double loss, double validationLoss, double tokensPerS) {
  const nlohmann::ordered_json line = {{"training", training_},
                                       {"step", done_},
                                       {"loss", loss},
                                       {"validation_loss", validationLoss},
                                       {"tokens_per_s", tokensPerS},
                                       {"seconds", watch_.seconds()}};
  metrics_->write(line.dump());
}

}  // namespace char_gpt

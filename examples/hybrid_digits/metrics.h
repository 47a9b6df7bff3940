#pragma once
// The measurements after each epoch, and their line in metrics.jsonl. Any thread.

#include <cstdint>
#include <string>

namespace hybrid {

struct EpochMetrics {
  int64_t epoch = 0;    // from 1
  std::string trainer;  // "trainer0", "trainer1", "single"
  double loss = 0;      // mean cross-entropy over the epoch's batches, in nats
  double accuracy = 0;  // on the test digits after the epoch, 0 to 1
  double stepsPerS = 0;
  double seconds = 0;  // since training began
};

// One line of metrics.jsonl, without its end: {"epoch":1,"trainer":"trainer0","loss":...,"accuracy":...,
// "steps_per_s":...,"seconds":...}. A number that is not finite becomes null, as JSON has no other word for
// it.
std::string jsonOf(const EpochMetrics& metrics);

}  // namespace hybrid

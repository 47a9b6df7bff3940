#pragma once
// What a run leaves behind: its folder, and metrics.jsonl in it with one line per epoch and trainer. No
// tensors here. They throw std::runtime_error with one sentence that names the path. One object belongs to
// one thread at a time; several processes may write to one metrics.jsonl, since each line is one appending
// write.

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

class RunFolder {
 public:
  // Makes `named`, or runs/hybrid_digits-YYYYmmdd-HHMMSS in local time when it is empty. Refuses a folder
  // that already holds a run: two runs mixed in one plot would tell nothing.
  static RunFolder make(const std::string& named);

  // One that another process has made.
  static RunFolder join(std::string path) { return RunFolder(std::move(path)); }

  const std::string& path() const { return path_; }
  std::string metricsPath() const { return path_ + "/metrics.jsonl"; }
  std::string plotPath() const { return path_ + "/metrics.png"; }
  std::string modelPath() const { return path_ + "/model.safetensors"; }

 private:
  explicit RunFolder(std::string path) : path_(std::move(path)) {}

  std::string path_;
};

class MetricsWriter {
 public:
  explicit MetricsWriter(std::string path);  // created when missing, appended to otherwise
  MetricsWriter(const MetricsWriter&) = delete;
  MetricsWriter& operator=(const MetricsWriter&) = delete;
  ~MetricsWriter();

  void write(const EpochMetrics& metrics);

 private:
  std::string path_;
  int fd_;
};

}  // namespace hybrid

#pragma once
// The folder that a run leaves behind. Functions throw std::runtime_error with one sentence that names the path. Any
// thread.

#include <string>

namespace example {

class RunFolder {
 public:
  // Makes `named`, or runs/PROGRAM-YYYYmmdd-HHMMSS in local time when it is empty. Refuses a folder whose metrics.jsonl
  // has lines: two runs mixed in one picture would show neither. An empty one is from a run that failed early.
  static RunFolder make(const std::string& program, const std::string& named);

  const std::string& path() const { return path_; }
  std::string file(const std::string& name) const { return path_ + "/" + name; }
  std::string metricsPath() const { return file("metrics.jsonl"); }

 private:
  explicit RunFolder(std::string path) : path_(std::move(path)) {}

  std::string path_;
};

}  // namespace example

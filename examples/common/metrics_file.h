#pragma once
// metrics.jsonl: a line of JSON for each measurement of a run. One object belongs to one thread at a time; several
// processes may write to one file, since each line is one appending write. Functions throw std::runtime_error with one
// sentence that names the path.

#include <string>

namespace example {

class MetricsFile {
 public:
  explicit MetricsFile(std::string path);  // created when missing, appended to otherwise
  MetricsFile(const MetricsFile&) = delete;
  MetricsFile& operator=(const MetricsFile&) = delete;
  ~MetricsFile();

  void write(const std::string& line);  // without its end

 private:
  std::string path_;
  int fd_;
};

}  // namespace example

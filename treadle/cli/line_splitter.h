#pragma once
// Cuts one worker's output into lines. Pure, no I/O; one per pipe, held by the relay.
//
// A carriage return that is not part of a line end starts the line afresh, as it does on a terminal: of a
// progress bar that redraws itself the last state is left. A line longer than kMaxLineBytes comes in pieces
// of that size, so that a worker that never ends its line cannot fill the launcher's memory.

#include <string>
#include <string_view>
#include <vector>

namespace treadle::cli {

class LineSplitter {
 public:
  static constexpr size_t kMaxLineBytes = 64 * 1024;

  // Appends the lines that `bytes` completes to `lines`, without their line ends.
  void feed(std::string_view bytes, std::vector<std::string>& lines);

  // What stands in the line that is not complete yet.
  const std::string& unfinished() const { return line_; }

  // Takes the unfinished line: at the end of the output.
  std::string takeUnfinished();

 private:
  void cut(std::vector<std::string>& lines);

  std::string line_;
  // A carriage return came last: what follows replaces the line, unless it is a line end.
  bool returned_ = false;
};

}  // namespace treadle::cli

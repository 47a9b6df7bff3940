#include "treadle/cli/line_splitter.h"

#include <algorithm>
#include <utility>

namespace treadle::cli {

void LineSplitter::feed(std::string_view bytes, std::vector<std::string>& lines) {
  while (!bytes.empty()) {
    if (returned_ && bytes.front() != '\n' && bytes.front() != '\r') takeUnfinished();
    // Up to the next line end or carriage return, but no more than the line still takes.
    size_t text = std::min(bytes.find_first_of("\r\n"), bytes.size());
    size_t taken = std::min(text, kMaxLineBytes - line_.size());
    line_.append(bytes.substr(0, taken));
    bytes.remove_prefix(taken);
    if (taken < text) {
      cut(lines);
    } else if (!bytes.empty()) {
      if (bytes.front() == '\n')
        lines.push_back(takeUnfinished());
      else
        returned_ = true;
      bytes.remove_prefix(1);
    }
  }
}

std::string LineSplitter::takeUnfinished() {
  returned_ = false;
  return std::exchange(line_, {});
}

// Ends a line that is full. A UTF-8 character that would be torn apart goes to the next piece.
void LineSplitter::cut(std::vector<std::string>& lines) {
  size_t end = line_.size();
  for (int back = 1; back <= 3; ++back) {
    auto byte = static_cast<unsigned char>(line_[line_.size() - static_cast<size_t>(back)]);
    if ((byte & 0xC0) == 0x80) continue;
    if (byte >= 0xC0) end = line_.size() - static_cast<size_t>(back);
    break;
  }
  lines.push_back(line_.substr(0, end));
  line_.erase(0, end);
}

}  // namespace treadle::cli

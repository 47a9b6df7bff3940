#include "treadle/cli/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include "treadle/core/base/environment.h"

namespace treadle::cli {
namespace {

constexpr char kEscape = '\x1b';

// The length of the control sequence at the start of `text`, which starts with an escape.
size_t sequenceLength(std::string_view text) {
  if (text.size() < 2 || text[1] != '[') return std::min<size_t>(text.size(), 2);
  size_t i = 2;
  while (i < text.size() && (text[i] < '@' || text[i] > '~')) ++i;
  return std::min(i + 1, text.size());
}

// Of a UTF-8 character by its first byte. A byte that begins none counts as a character: bytes pass as they
// are.
size_t characterLength(unsigned char first) {
  if (first < 0xC0) return 1;
  return first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
}

// Good enough for progress bars: characters from U+4000 to U+DFFF (most of CJK) and beyond U+10000 (emoji)
// count double.
size_t characterWidth(unsigned char first) { return (first >= 0xE4 && first <= 0xED) || first >= 0xF0 ? 2 : 1; }

}  // namespace

// Without TERM nobody says that the other end understands anything (cron, some CI systems).
bool isScreen(int fd) {
  std::string term = base::environment("TERM").value_or("dumb");
  return ::isatty(fd) == 1 && term != "dumb";
}

size_t columnsOf(int fd) {
  winsize size{};
  return ::ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

std::string printable(std::string_view text, size_t columns) {
  std::string shown;
  size_t width = 0;
  bool coloured = false;
  for (size_t i = 0; i < text.size();) {
    auto first = static_cast<unsigned char>(text[i]);
    size_t length = first == kEscape ? sequenceLength(text.substr(i)) : characterLength(first);
    std::string_view piece = text.substr(i, length);
    i += length;
    if (first == kEscape) {
      bool colour = piece.size() > 2 && piece.back() == 'm';
      if (colour) shown += piece;
      coloured = coloured || colour;
      continue;
    }
    if ((first < ' ' && first != '\t') || first == 0x7f) continue;
    width += first == '\t' ? 8 - width % 8 : characterWidth(first);
    if (width > columns) break;
    shown += piece;
  }
  // Whatever colour the worker left on ends with its line.
  return coloured ? shown + "\x1b[0m" : shown;
}

std::string prefixOf(int rank, bool coloured) {
  std::string text = "[" + std::to_string(rank) + "]";
  if (!coloured) return text + " ";
  return "\x1b[3" + std::to_string(1 + rank % 6) + "m" + text + "\x1b[0m ";
}

}  // namespace treadle::cli

#pragma once
// The launcher's standard output and error: whole lines of all workers, each with its rank in front, and the
// launcher's own. One thread; owned by the run.
//
// On a terminal the last row may show one unfinished line (a progress bar, mostly): a line from elsewhere
// takes its place and the bar is drawn again below. Everywhere else only finished lines are written, so that
// a log file never has two workers in one line.

#include <optional>
#include <string>
#include <string_view>

#include "treadle/cli/sink.h"

namespace treadle::cli {

enum class Stream { kOut, kErr };

class Console {
 public:
  // `onRoom` is called when output goes on after `congested()` was true.
  Console(io::Reactor& reactor, int outFd, int errFd, UniqueFunction<void()> onRoom);

  void line(Stream stream, int rank, std::string_view text);
  void unfinished(Stream stream, int rank, std::string_view text);  // "" when the line is gone
  void notice(std::string_view text);                               // the launcher's own line, on standard error
  void flush();                                                     // after a batch of the above

  bool congested() const { return out_.full() || err_.full(); }
  bool drained() const { return out_.empty() && err_.empty(); }
  int error() const { return out_.error(); }
  bool outIsTerminal() const { return outScreen_; }
  // How wide a worker's line may be on the terminal.
  size_t columnsFor(int rank) const;

 private:
  struct Unfinished {
    Stream stream;
    int rank;
    std::string text;
    bool shown;
  };

  Sink& sinkOf(Stream stream) { return stream == Stream::kOut || shared_ ? out_ : err_; }
  bool onScreen(Stream stream) const { return stream == screenStream_ || (shared_ && screenStream_); }
  void eraseUnfinished();
  void writeLine(Stream stream, std::string_view prefix, std::string_view text);

  const bool outScreen_, errScreen_;
  const bool shared_;  // both are one terminal: one sink, so that the order is kept
  const std::optional<Stream> screenStream_;
  const bool coloured_;
  const int screenFd_;
  UniqueFunction<void()> onRoom_;
  Sink out_, err_;
  std::optional<Unfinished> last_;
};

}  // namespace treadle::cli

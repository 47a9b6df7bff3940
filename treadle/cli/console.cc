#include "treadle/cli/console.h"

#include <sys/stat.h>

#include "treadle/cli/terminal.h"
#include "treadle/core/base/environment.h"

namespace treadle::cli {
namespace {

constexpr std::string_view kEraseLine = "\r\x1b[K";

// Of one terminal, both streams have to go through one queue, or their order would be lost while it is slow.
bool sameDevice(int a, int b) {
  struct stat first{}, second{};
  return ::fstat(a, &first) == 0 && ::fstat(b, &second) == 0 && first.st_rdev == second.st_rdev;
}

std::optional<Stream> screenOf(bool out, bool err) {
  if (out) return Stream::kOut;
  return err ? std::optional(Stream::kErr) : std::nullopt;
}

}  // namespace

Console::Console(io::Reactor& reactor, int outFd, int errFd, UniqueFunction<void()> onRoom)
    : outScreen_(isScreen(outFd)),
      errScreen_(isScreen(errFd)),
      shared_(outScreen_ && errScreen_ && sameDevice(outFd, errFd)),
      screenStream_(screenOf(outScreen_, errScreen_)),
      coloured_(!base::environment("NO_COLOR")),
      screenFd_(outScreen_ ? outFd : errFd),
      onRoom_(std::move(onRoom)),
      out_(reactor, outFd, [this] { onRoom_(); }),
      err_(reactor, errFd, [this] { onRoom_(); }) {}

size_t Console::columnsFor(int rank) const {
  // The last column stays free: a full row would wrap, and a wrapped line cannot be redrawn.
  size_t columns = columnsOf(screenFd_), taken = prefixOf(rank, false).size() + 1;
  return columns > taken ? columns - taken : 1;
}

void Console::eraseUnfinished() {
  if (!last_ || !last_->shown) return;
  sinkOf(last_->stream).append(kEraseLine);
  last_->shown = false;
}

void Console::writeLine(Stream stream, std::string_view prefix, std::string_view text) {
  Sink& sink = sinkOf(stream);
  // The unfinished line comes back with the next flush, below all lines of this batch.
  if (onScreen(stream)) eraseUnfinished();
  sink.append(prefix);
  sink.append(onScreen(stream) ? printable(text) : std::string(text));
  sink.append("\n");
}

void Console::line(Stream stream, int rank, std::string_view text) {
  if (last_ && last_->stream == stream && last_->rank == rank) unfinished(stream, rank, "");
  writeLine(stream, prefixOf(rank, coloured_ && onScreen(stream)), text);
}

void Console::unfinished(Stream stream, int rank, std::string_view text) {
  if (!onScreen(stream)) return;
  bool ours = last_ && last_->stream == stream && last_->rank == rank;
  // Nothing to take away, or nothing new to show: no bytes for the terminal.
  if (text.empty() ? !ours : ours && last_->text == text) return;
  eraseUnfinished();
  if (text.empty())
    last_.reset();
  else
    last_ = Unfinished{stream, rank, std::string(text), false};
}

void Console::notice(std::string_view text) {
  writeLine(Stream::kErr, "", text);
  flush();
}

void Console::flush() {
  if (last_ && !last_->shown) {
    Sink& sink = sinkOf(last_->stream);
    sink.append(prefixOf(last_->rank, coloured_));
    sink.append(printable(last_->text, columnsFor(last_->rank)));
    last_->shown = true;
  }
  out_.flush();
  err_.flush();
}

}  // namespace treadle::cli

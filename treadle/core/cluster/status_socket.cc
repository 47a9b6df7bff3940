#include "treadle/core/cluster/status_socket.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>

#include "treadle/core/base/environment.h"
#include "treadle/core/link/message.h"

namespace treadle::cluster {
namespace {

constexpr std::string_view kFailure = "!", kGivingUp = "?";  // no name has these characters
constexpr std::string_view kFirstEnd = "ended";
constexpr size_t kFields = 7;        // of a FirstEnd, with its mark
constexpr size_t kMaxMessage = 600;  // a name, a master and some words
constexpr size_t kMaxWords = 100;

// The inode is compared because a program may have closed the descriptor and opened something else under its
// number; writing a name into a file of the user's would be worse than not telling it.
int socketToLauncher() {
  std::string where = base::environment(kStatusVariable).value_or("");
  std::string_view text = where;
  size_t colon = text.find(':');
  if (colon == std::string_view::npos) return -1;
  int fd = -1;
  uint64_t inode = 0;
  (void)std::from_chars(text.data(), text.data() + colon, fd);
  (void)std::from_chars(text.data() + colon + 1, text.data() + text.size(), inode);
  struct stat info{};
  if (fd < 0 || ::fstat(fd, &info) != 0 || !S_ISSOCK(info.st_mode) || info.st_ino != inode) return -1;
  // What this worker starts is not this worker.
  (void)::fcntl(fd, F_SETFD, FD_CLOEXEC);
  return fd;
}

void sayToLauncher(std::string_view message) {
  const int fd = socketToLauncher();
  if (fd >= 0) (void)::send(fd, message.data(), message.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
}

std::optional<int> numberBelow(std::string_view text, int end) {
  int number = -1;
  auto [last, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const bool good = error == std::errc() && last == text.data() + text.size() && number >= 0 && number < end;
  return good ? std::optional(number) : std::nullopt;
}

bool isPrintable(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c >= ' ' && c < 0x7f; });
}

// Exactly so many lines, or none at all.
std::optional<std::array<std::string_view, kFields>> linesOf(std::string_view text) {
  std::array<std::string_view, kFields> lines;
  for (size_t i = 0; i < kFields; ++i) {
    const size_t end = text.find('\n');
    if ((end == std::string_view::npos) != (i + 1 == kFields)) return {};
    lines[i] = text.substr(0, end);
    text.remove_prefix(std::min(text.size(), lines[i].size() + 1));
  }
  return lines;
}

// PeerLost: nobody else can take its place.
Status lossOf(const FirstEnd& end) {
  const std::string rank = "rank " + std::to_string(end.rank);
  const std::string who = end.name.empty() ? rank : link::describe({end.name, end.rank});
  return peerLost(end.name.empty() ? rank : end.name,
                  who + " " + end.how + " before all had joined; look at its output");
}

}  // namespace

void tellLauncher(const std::string& name) { sayToLauncher(name); }

void tellLauncherOfFailure() { sayToLauncher(kFailure); }

void tellLauncherOfGivingUp() { sayToLauncher(kGivingUp); }

bool tellsFailure(std::string_view message) { return message == kFailure; }

bool tellsGivingUp(std::string_view message) { return message == kGivingUp; }

// What workers may be called (JoinOptions::name). It ends up on a terminal, so nothing else is believed.
std::string nameFromMessage(std::string_view message) {
  constexpr std::string_view kOthers = "_.:-";
  if (message.size() > kMaxNameLength) return {};
  for (char c : message) {
    bool alphanumeric = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    if (!alphanumeric && kOthers.find(c) == std::string_view::npos) return {};
  }
  return std::string(message);
}

std::string encodeFirstEnd(const FirstEnd& end) {
  std::string text(kFirstEnd);
  for (const std::string& line : {std::to_string(end.reader), std::to_string(end.worldSize), end.master,
                                  std::to_string(end.rank), end.name, end.how})
    text += "\n" + line;
  return text;
}

std::optional<FirstEnd> parseFirstEnd(std::string_view message) {
  if (message.size() > kMaxMessage) return {};
  const auto lines = linesOf(message);
  if (!lines) return {};
  const auto [mark, reader, worldSize, master, rank, name, how] = *lines;
  const std::optional<int> size = numberBelow(worldSize, kMaxWorldSize + 1);
  if (mark != kFirstEnd || !size) return {};
  const std::optional<int> readerRank = numberBelow(reader, *size), endedRank = numberBelow(rank, *size);
  const bool goodName = nameFromMessage(name) == name;
  const bool goodWords = !how.empty() && how.size() <= kMaxWords && isPrintable(how);
  if (!readerRank || !endedRank || !goodName || !goodWords) return {};
  return FirstEnd{*readerRank, *size, std::string(master), *endedRank, std::string(name), std::string(how)};
}

bool mayBeConsequence(const Status& why) {
  return why.code() == Code::kPeerLost || why.code() == Code::kDeadlineExceeded;
}

LauncherWatch::LauncherWatch(const Launch& launch)
    : rank_(launch.rank),
      worldSize_(launch.worldSize),
      master_(launch.masterAddress + ":" + std::to_string(launch.masterPort)),
      fd_(launch.open() ? -1 : socketToLauncher()) {}

std::optional<FirstEnd> LauncherWatch::firstEnd() const {
  std::array<char, kMaxMessage + 1> bytes;
  const ssize_t size = fd_ < 0 ? -1 : ::recv(fd_, bytes.data(), bytes.size(), MSG_PEEK | MSG_DONTWAIT);
  if (size <= 0) return {};
  std::optional<FirstEnd> end = parseFirstEnd({bytes.data(), static_cast<size_t>(size)});
  const bool ofThisJob =
      end && end->reader == rank_ && end->worldSize == worldSize_ && end->master == master_ && end->rank != rank_;
  return ofThisJob ? end : std::nullopt;
}

Status LauncherWatch::causeOf(const Status& why) const {
  if (!mayBeConsequence(why)) return why;
  const std::optional<FirstEnd> end = firstEnd();
  return end ? lossOf(*end) : why;
}

}  // namespace treadle::cluster

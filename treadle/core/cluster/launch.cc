#include "treadle/core/cluster/launch.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <array>
#include <charconv>
#include <optional>
#include <string_view>

#include "treadle/core/base/environment.h"

namespace treadle::cluster {
namespace {

constexpr std::string_view kHowToStart =
    "start the program through `treadle run -n 4 -- program`, or set RANK, WORLD_SIZE, MASTER_ADDR and "
    "MASTER_PORT";

// A value as it may stand in a message: the environment may hold anything, of any length.
std::string quoted(std::string_view value) {
  constexpr size_t kShown = 60;
  std::string text = "'";
  for (char c : value.substr(0, kShown)) text += c >= ' ' && c != 0x7f ? c : '?';
  return text + (value.size() > kShown ? "...'" : "'");
}

Status wrong(std::string_view name, std::string_view value, std::string_view expected) {
  return invalidArgument("the environment variable " + std::string(name) + " is " + quoted(value) + ", not " +
                         std::string(expected) + "; " + std::string(kHowToStart));
}

Status missing(std::string_view name, std::string_view given) {
  return failedPrecondition("the environment variable " + std::string(name) + " is missing while " +
                            std::string(given) + " is set; " + std::string(kHowToStart));
}

// Digits and a minus sign only, all of the text: " 1", "+1" and "4x" are typing errors that must not pass.
Result<int> numberIn(const char* name, std::string_view text, int lowest, int highest) {
  int number = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || number < lowest || number > highest)
    return wrong(name, text, "a whole number from " + std::to_string(lowest) + " to " + std::to_string(highest));
  return number;
}

// Enough to keep blanks, control characters and quotes out of addresses; whether the host exists, connecting
// tells.
bool isHost(std::string_view text) {
  constexpr std::string_view kOthers = ".-_:%";
  for (char c : text) {
    bool alphanumeric = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    if (!alphanumeric && kOthers.find(c) == std::string_view::npos) return false;
  }
  return !text.empty() && text.size() <= 253;
}

// "host:port", "[::1]:port" for an IPv6 address.
Status readMaster(const char* name, const std::string& text, Launch& launch) {
  size_t colon = text.rfind(':');
  std::string host = text.substr(0, colon);
  bool bracketed = host.size() > 2 && host.front() == '[' && host.back() == ']';
  if (bracketed) host = host.substr(1, host.size() - 2);
  if (colon == std::string::npos || !isHost(host) || (!bracketed && host.find(':') != std::string::npos))
    return wrong(name, text, "a host and a port like 127.0.0.1:29500");
  Result<int> port = numberIn(name, std::string_view(text).substr(colon + 1), 1, 65'535);
  if (!port.ok()) return wrong(name, text, "a host and a port from 1 to 65535, like 127.0.0.1:29500");
  launch.masterAddress = host;
  launch.masterPort = static_cast<uint16_t>(*port);
  return {};
}

// Rank and world size from two variables; the rank has to lie in the world.
Status readPlace(const char* rankName, const std::string& rankText, const char* worldName, const std::string& worldText,
                 Launch& launch) {
  Result<int> world = numberIn(worldName, worldText, 1, kMaxWorldSize);
  if (!world.ok()) return std::move(world).status();
  Result<int> rank = numberIn(rankName, rankText, 0, kMaxWorldSize - 1);
  if (!rank.ok()) return std::move(rank).status();
  if (*rank >= *world)
    return invalidArgument("the environment variable " + std::string(rankName) + " is " + rankText + " but " +
                           worldName + " is " + worldText + ": ranks count from 0 to " + std::to_string(*world - 1) +
                           "; " + std::string(kHowToStart));
  launch.rank = *rank;
  launch.worldSize = *world;
  return {};
}

// A launcher that we understand: the variables it sets, all of which have to be there when one of them is,
// and what they mean. Another launcher is another such function below and a line in `kReaders`.
using Values = std::array<std::string, 4>;
using Names = std::array<const char*, 4>;
struct Reader {
  Names names;  // unused places are null
  Status (*read)(const Names& names, const Values& values, Launch& launch);
};

Status readTreadleRun(const Names& names, const Values& values, Launch& launch) {
  TREADLE_RETURN_IF_ERROR(readPlace(names[0], values[0], names[1], values[1], launch));
  return readMaster(names[2], values[2], launch);
}

Status readPlain(const Names& names, const Values& values, Launch& launch) {
  TREADLE_RETURN_IF_ERROR(readPlace(names[0], values[0], names[1], values[1], launch));
  if (!isHost(values[2])) return wrong(names[2], values[2], "a host name or an IP address");
  Result<int> port = numberIn(names[3], values[3], 1, 65'535);
  if (!port.ok()) return std::move(port).status();
  launch.masterAddress = values[2];
  launch.masterPort = static_cast<uint16_t>(*port);
  return {};
}

// The first launcher with a variable set is the one that is believed.
constexpr std::array<Reader, 2> kReaders = {
    Reader{{"TREADLE_RANK", "TREADLE_WORLD_SIZE", "TREADLE_MASTER", nullptr}, &readTreadleRun},
    Reader{{"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}, &readPlain},
};

// Nothing when none of the reader's variables is set.
Result<std::optional<Launch>> readWith(const Reader& reader) {
  Values values;
  const char *given = nullptr, *lacking = nullptr;
  for (size_t i = 0; i < reader.names.size(); ++i) {
    if (reader.names[i] == nullptr) continue;
    std::optional<std::string> value = base::environment(reader.names[i]);
    if (value) values[i] = *value;
    const char*& first = value ? given : lacking;
    if (first == nullptr) first = reader.names[i];
  }
  if (given == nullptr) return std::optional<Launch>();
  if (lacking != nullptr) return missing(lacking, given);
  Launch launch;
  if (Status status = reader.read(reader.names, values, launch); !status.ok()) return status;
  return std::optional<Launch>(std::move(launch));
}

}  // namespace

Result<Launch> Launch::detect() {
  for (const Reader& reader : kReaders) {
    Result<std::optional<Launch>> found = readWith(reader);
    if (!found.ok()) return std::move(found).status();
    if (!found->has_value()) continue;
    Launch launch = **std::move(found);
    launch.jobKey = base::environment("TREADLE_JOB_KEY").value_or("");
    if (Status status = launch.validate(); !status.ok()) return status;
    return launch;
  }
  return failedPrecondition("this program is not part of a job: no launcher's environment variables are set; " +
                            std::string(kHowToStart));
}

Status Launch::validate() const {
  if (worldSize < 1 || worldSize > kMaxWorldSize)
    return invalidArgument("the world size is " + std::to_string(worldSize) + ", not a number from 1 to " +
                           std::to_string(kMaxWorldSize));
  if (rank < 0 || rank >= worldSize)
    return invalidArgument("the rank is " + std::to_string(rank) + " but ranks of a job of " +
                           std::to_string(worldSize) + " count from 0 to " + std::to_string(worldSize - 1));
  if (!isHost(masterAddress))
    return invalidArgument("the master's address is " + quoted(masterAddress) + ", not a host name or an IP address");
  if (masterPort == 0) return invalidArgument("the master's port is 0: give the port on which rank 0 shall listen");
  if (!jobKey.empty() && (jobKey.size() < kMinJobKeyLength || jobKey.size() > kMaxJobKeyLength))
    return invalidArgument("the job key (TREADLE_JOB_KEY) has " + std::to_string(jobKey.size()) + " characters, not " +
                           std::to_string(kMinJobKeyLength) + " to " + std::to_string(kMaxJobKeyLength) +
                           "; `openssl rand -hex 32` makes a good one");
  return {};
}

namespace {

constexpr std::string_view kFailure = "!";  // no name has this character

// The inode is compared because a program may have closed the descriptor and opened something else under its
// number; writing a name into a file of the user's would be worse than not telling it.
void sayToLauncher(std::string_view message) {
  std::string where = base::environment(kStatusVariable).value_or("");
  std::string_view text = where;
  size_t colon = text.find(':');
  if (colon == std::string_view::npos) return;
  int fd = -1;
  uint64_t inode = 0;
  (void)std::from_chars(text.data(), text.data() + colon, fd);
  (void)std::from_chars(text.data() + colon + 1, text.data() + text.size(), inode);
  struct stat info{};
  if (fd < 0 || ::fstat(fd, &info) != 0 || !S_ISSOCK(info.st_mode) || info.st_ino != inode) return;
  // What this worker starts is not this worker.
  (void)::fcntl(fd, F_SETFD, FD_CLOEXEC);
  (void)::send(fd, message.data(), message.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
}

}  // namespace

void tellLauncher(const std::string& name) { sayToLauncher(name); }

void tellLauncherOfFailure() { sayToLauncher(kFailure); }

bool tellsFailure(const char* bytes, size_t size) { return std::string_view(bytes, size) == kFailure; }

// What workers may be called (JoinOptions::name). It ends up on a terminal, so nothing else is believed.
std::string nameFromMessage(const char* bytes, size_t size) {
  constexpr std::string_view kOthers = "_.:-";
  if (size > kMaxNameLength) return {};
  for (char c : std::string_view(bytes, size)) {
    bool alphanumeric = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    if (!alphanumeric && kOthers.find(c) == std::string_view::npos) return {};
  }
  return {bytes, size};
}

}  // namespace treadle::cluster

#include "treadle/cli/place.h"

#include <unistd.h>

#include <array>

#include "treadle/core/base/environment.h"
#include "treadle/core/io/socket.h"

namespace treadle::cli {
namespace {

// Of any launcher that Launch::detect knows. MASTER_ADDR and MASTER_PORT alone make no job.
bool inJob() {
  for (const char* name : {"TREADLE_RANK", "TREADLE_WORLD_SIZE", "TREADLE_MASTER", "RANK", "WORLD_SIZE"})
    if (base::environment(name)) return true;
  return false;
}

std::string readAll(int fd) {
  std::string text;
  std::array<char, 4096> bytes;
  for (ssize_t size; (size = ::read(fd, bytes.data(), bytes.size())) > 0;)
    text.append(bytes.data(), static_cast<size_t>(size));
  return text;
}

}  // namespace

Result<Place> Place::find(const std::vector<std::string>& arguments) {
  Place place;
  if (inJob()) {
    Result<Launch> launch = Launch::detect();
    if (!launch.ok()) return std::move(launch).status();
    if (launch->isServer())
      return failedPrecondition("rank " + std::to_string(launch->rank) +
                                " is a summation server's (TREADLE_SERVERS): start `treadle server` with it");
    place.launch_ = std::move(*launch);
    return place;
  }
  Result<ReservedPort> port = reservePort(0);
  if (!port.ok()) return std::move(port).status();
  place.port_ = std::move(*port);
  Result<JobKey> key = makeJobKey();
  if (!key.ok()) return std::move(key).status();
  place.launch_ = Launch{0, 2, "127.0.0.1", place.port_.port, key->key};
  WorkerPlace other{.rank = 1, .worldSize = 2, .masterPort = place.port_.port, .jobKey = key->text, .statusSocket = ""};
  Result<io::Process> process =
      io::Process::start({"/proc/self/exe", arguments, environmentOf(other), {key->file.get()}});
  if (!process.ok()) return process.status().withContext("a second process cannot be started");
  place.other_ = std::move(*process);
  return place;
}

std::string Place::awaitOther(TimePoint deadline) {
  if (!other_) return {};
  (void)io::waitFor(other_->endFd(), POLLIN, deadline);
  return readAll(other_->standardError().get());
}

}  // namespace treadle::cli

#include "treadle/cli/worker_environment.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>

#include "treadle/core/cluster/job_key.h"
#include "treadle/core/cluster/status_socket.h"

namespace treadle::cli {
namespace {

constexpr const char* kMasterAddress = "127.0.0.1";

}  // namespace

// Note [Master port]
// Rank 0 listens on a port that the others have to know before rank 0 runs, so the launcher chooses it. To
// look for a free port, let it go and hope would be a race: another program may get it in between. So the
// launcher keeps the port bound until the job is over, with SO_REUSEADDR and without listening. Linux never
// gives out a bound port by itself, neither to bind(0) nor to connect(), yet lets rank 0 bind the same port
// and listen on it, provided that it sets SO_REUSEADDR too, as servers do (ours, and torch's TCPStore). What
// is left: a program that asks for this very port number, with SO_REUSEADDR, before rank 0 does; rank 0 then
// fails with "in use".
Result<ReservedPort> reservePort(uint16_t wanted) {
  ReservedPort reserved;
  reserved.socket = io::Fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!reserved.socket.valid()) return io::errnoStatus(Code::kResourceExhausted, "no socket can be made", errno);
  int one = 1;
  (void)::setsockopt(reserved.socket.get(), SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(wanted);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  if (::bind(reserved.socket.get(), reinterpret_cast<sockaddr*>(&address), size) != 0)
    return io::errnoStatus(Code::kFailedPrecondition,
                           "port " + std::to_string(wanted) +
                               " of 127.0.0.1 cannot be used; choose another "
                               "--master-port, or leave it out to get a free one",
                           errno);
  if (::getsockname(reserved.socket.get(), reinterpret_cast<sockaddr*>(&address), &size) != 0)
    return io::errnoStatus(Code::kInternal, "the kernel does not tell the port it chose", errno);
  reserved.port = ntohs(address.sin_port);
  return reserved;
}

Result<JobKey> makeJobKey() {
  std::array<unsigned char, 32> bytes{};
  // Up to 256 bytes come at once or not at all.
  if (::getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size()))
    return io::errnoStatus(Code::kInternal, "the kernel gives no random bytes for the job key", errno);
  constexpr std::string_view kDigits = "0123456789abcdef";
  JobKey made;
  for (unsigned char byte : bytes) {
    made.key += kDigits[byte >> 4];
    made.key += kDigits[byte & 15];
  }
  made.file = io::Fd(::memfd_create("treadle job key", MFD_CLOEXEC));
  // Where that is forbidden, a file without a name.
  if (!made.file.valid()) made.file = io::Fd(::open(P_tmpdir, O_TMPFILE | O_RDWR | O_CLOEXEC, S_IRUSR | S_IWUSR));
  struct stat info{};
  if (!made.file.valid() || ::fstat(made.file.get(), &info) != 0 ||
      ::write(made.file.get(), made.key.data(), made.key.size()) != static_cast<ssize_t>(made.key.size()))
    return io::errnoStatus(Code::kResourceExhausted, "no file can be made for the job key", errno);
  made.text = std::to_string(made.file.get()) + ":" + std::to_string(info.st_ino);
  return made;
}

std::string masterAt(uint16_t port) { return kMasterAddress + (":" + std::to_string(port)); }

std::vector<std::pair<std::string, std::string>> environmentOf(const WorkerPlace& place) {
  std::string rank = std::to_string(place.rank), size = std::to_string(place.worldSize);
  // For programs that know nothing of servers.
  std::string workers = std::to_string(place.worldSize - place.servers);
  std::string port = std::to_string(place.masterPort);
  std::vector<std::pair<std::string, std::string>> variables = {
      {"TREADLE_RANK", rank},
      {"TREADLE_WORLD_SIZE", size},
      {"TREADLE_SERVERS", std::to_string(place.servers)},
      {"TREADLE_MASTER", masterAt(place.masterPort)},
      {cluster::kJobKeyDescriptor, place.jobKey},
      {cluster::kJobKeyFile, ""},
      {cluster::kJobKey, ""},  // of this shell, perhaps: not this job's
      {cluster::kStatusVariable, place.statusSocket},
      {"TREADLE_TERMINAL", place.terminal ? "1" : "0"},
      // The names that torch.distributed and most other frameworks read.
      {"RANK", rank},
      {"WORLD_SIZE", workers},
      {"LOCAL_RANK", rank},
      {"LOCAL_WORLD_SIZE", workers},
      {"MASTER_ADDR", kMasterAddress},
      {"MASTER_PORT", port},
  };
  if (place.terminal) variables.emplace_back("COLUMNS", std::to_string(place.columns));
  return variables;
}

}  // namespace treadle::cli

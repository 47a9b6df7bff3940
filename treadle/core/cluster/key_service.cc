#include "treadle/core/cluster/key_service.h"

#include <sys/random.h>

#include <array>

#include "treadle/core/base/log.h"
#include "treadle/core/io/retry.h"
#include "treadle/core/link/strangers.h"

namespace treadle::cluster {
namespace {

// 256 bits, as many as HMAC-SHA256 can make use of.
constexpr size_t kKeyBytes = 32;

Result<io::Address> serviceAddress(const std::string& meetingName) {
  return io::Address::unixAbstract("treadle-key-" + meetingName);
}

Result<std::string> askForKey(const io::Address& address, const std::string& meetingName, TimePoint deadline) {
  Result<io::Fd> fd = io::connectWithRetry(address, deadline);
  if (!fd.ok())
    return deadlineExceeded("rank 0 has not started on this host (nobody hands out the key of master port or job '" +
                            meetingName + "'); start it, or give all workers the same TREADLE_JOB_KEY");
  if (!io::peerIsSameUser(fd->get()))
    return unauthenticated("the process that hands out the job's key belongs to another user");
  std::string key(kKeyBytes, '\0');
  TREADLE_RETURN_IF_ERROR(io::readAll(fd->get(), std::as_writable_bytes(std::span(key)), deadline));
  return key;
}

}  // namespace

Result<std::unique_ptr<KeyService>> KeyService::start(io::Reactor& reactor, const std::string& meetingName,
                                                      std::string key) {
  if (key.empty()) {
    key.resize(kKeyBytes);
    if (::getrandom(key.data(), key.size(), 0) != static_cast<ssize_t>(key.size()))
      return internalError("the system gives no random numbers");
  }
  Result<io::Address> address = serviceAddress(meetingName);
  if (!address.ok()) return std::move(address).status();
  Result<io::Fd> listener = io::listenOn(*address);
  if (!listener.ok())
    return failedPrecondition("another job on this host meets at '" + meetingName +
                              "' (a master port, or a launcher's job); choose another MASTER_PORT");
  auto strangers = std::make_shared<link::Strangers>();  // of the reactor's thread alone
  auto refuse = [strangers](const std::string& who, const std::string& why) {
    if (auto line = strangers->refused(who, why, Clock::now())) logWarn("", *line);
  };
  io::Listener::Host host;
  host.connected = [key, refuse](const io::Fd& peer) {
    if (!io::peerIsSameUser(peer.get())) return refuse("another user of this host", "it asked for the job's key");
    // 32 bytes fit into any fresh socket; who cannot take them asks again.
    io::writeAll(peer.get(), std::as_bytes(std::span(key)), Clock::now()).ignore();
  };
  host.failed = [refuse](const Status& why) { refuse("any process", why.message()); };
  auto started = io::Listener::start(reactor, std::move(*listener), std::move(host));
  if (!started.ok()) return std::move(started).status();
  return std::unique_ptr<KeyService>(new KeyService(std::move(*started), std::move(key)));  // NOLINT: private
}

// Asks only who runs as the same user: an abstract socket's name belongs to whoever binds it first. Who listens may end
// before it has taken this connection: another one, of the next keeper of an open job, may come.
Result<std::string> fetchKey(const std::string& meetingName, TimePoint deadline) {
  Result<io::Address> address = serviceAddress(meetingName);
  if (!address.ok()) return std::move(address).status();
  Duration interval{};
  for (;;) {
    Result<std::string> key = askForKey(*address, meetingName, deadline);
    if (key.ok() || key.status().code() != Code::kPeerLost || !io::waitForRetry(interval, deadline)) return key;
  }
}

}  // namespace treadle::cluster

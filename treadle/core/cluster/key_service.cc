#include "treadle/core/cluster/key_service.h"

#include <sys/random.h>

#include <array>

#include "treadle/core/base/log.h"
#include "treadle/core/cluster/retry.h"

namespace treadle::cluster {
namespace {

// 256 bits, as many as HMAC-SHA256 can make use of.
constexpr size_t kKeyBytes = 32;

Result<io::Address> serviceAddress(const std::string& meetingName) {
  return io::Address::unixAbstract("treadle-key-" + meetingName);
}

}  // namespace

class KeyService::Server : public io::EventHandler {
 public:
  Server(io::Fd fd, std::string key) : fd_(std::move(fd)), key_(std::move(key)) {}

  void onEvents(uint32_t) override {
    for (;;) {
      Result<io::Fd> peer = io::acceptFrom(fd_.get());
      if (!peer.ok()) return logWarn("", peer.status().message());
      if (!peer->valid()) return;
      if (!io::peerIsSameUser(peer->get())) {
        logWarn("", "another user asked for the job's key and was refused");
        continue;
      }
      // 32 bytes fit into any fresh socket; who cannot take them asks again.
      io::writeAll(peer->get(), std::as_bytes(std::span(key_)), Clock::now()).ignore();
    }
  }

 private:
  const io::Fd fd_;
  const std::string key_;
};

Result<std::unique_ptr<KeyService>> KeyService::start(io::Reactor& reactor, const std::string& meetingName) {
  std::string key(kKeyBytes, '\0');
  if (::getrandom(key.data(), key.size(), 0) != static_cast<ssize_t>(key.size()))
    return internalError("the system gives no random numbers");
  Result<io::Address> address = serviceAddress(meetingName);
  if (!address.ok()) return std::move(address).status();
  Result<io::Fd> listener = io::listenOn(*address);
  if (!listener.ok())
    return failedPrecondition("another job on this host meets at '" + meetingName +
                              "' (a master port, or a launcher's job); choose another MASTER_PORT");
  int fd = listener->get();
  TREADLE_RETURN_IF_ERROR(reactor.add(fd, EPOLLIN, std::make_shared<Server>(std::move(*listener), key)));
  return std::unique_ptr<KeyService>(new KeyService(reactor, fd, std::move(key)));  // NOLINT: private constructor
}

KeyService::~KeyService() { reactor_.remove(fd_); }

// Asks only who runs as the same user: an abstract socket's name belongs to whoever binds it first.
Result<std::string> fetchKey(const std::string& meetingName, TimePoint deadline) {
  Result<io::Address> address = serviceAddress(meetingName);
  if (!address.ok()) return std::move(address).status();
  Result<io::Fd> fd = connectWithRetry(*address, deadline);
  if (!fd.ok())
    return deadlineExceeded("rank 0 has not started on this host (nobody hands out the key of master port or job '" +
                            meetingName + "'); start it, or give all workers the same TREADLE_JOB_KEY");
  if (!io::peerIsSameUser(fd->get()))
    return unauthenticated("the process that hands out the job's key belongs to another user");
  std::string key(kKeyBytes, '\0');
  TREADLE_RETURN_IF_ERROR(io::readAll(fd->get(), std::as_writable_bytes(std::span(key)), deadline));
  return key;
}

}  // namespace treadle::cluster

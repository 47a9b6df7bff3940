// Who listens: takes connections, lets each shake hands (pending_handshake.h) and hands over those that passed.

#include <sys/resource.h>

#include <algorithm>

#include "treadle/core/base/log.h"
#include "treadle/core/io/listener.h"
#include "treadle/core/link/pending_handshake.h"
#include "treadle/core/link/strangers.h"

namespace treadle::link {
namespace {

// Strangers can cost no more than so many sockets and read buffers, for the ten seconds that each has. A process has
// other uses for its descriptors.
size_t mostAtOnce() {
  constexpr rlim_t kLeast = 16, kMost = 1024, kShare = 8;
  rlimit descriptors{};
  if (::getrlimit(RLIMIT_NOFILE, &descriptors) != 0) return kLeast;
  return std::clamp(descriptors.rlim_cur / kShare, kLeast, kMost);
}

}  // namespace

class Acceptor::Core final : public HandshakeHost, public std::enable_shared_from_this<Core> {
 public:
  Core(io::Reactor& reactor, Credentials credentials, Host host, const io::Address& address)
      : reactor_(reactor),
        credentials_(std::move(credentials)),
        address_(address),
        encrypts_(credentials_.encrypts(address)),
        atOnce_(mostAtOnce()),
        timeout_(host.timeout),
        host_(std::move(host)) {}

  Status begin(io::Fd listener);
  void end();

  void drop(int fd) override;
  void turnOf(PendingHandshake& pending) override;
  void refused(const std::string& source, const std::string& why) override;
  Status check(const Hello& hello) override;
  void hand(int fd, Hello hello) override;
  const Credentials& credentials() const override { return credentials_; }
  io::Reactor& reactor() override { return reactor_; }
  Duration timeout() const override { return timeout_; }
  uint16_t port() const override { return address_.port(); }

 private:
  void accept(io::Fd fd);
  Result<io::Stream> streamOf(io::Fd fd) const;
  std::shared_ptr<PendingHandshake> takeOneOfMost() TREADLE_REQUIRES(mutex_);

  io::Reactor& reactor_;
  const Credentials credentials_;
  const io::Address address_;
  const bool encrypts_;
  const size_t atOnce_;  // connections that shake hands at a time
  const Duration timeout_;
  std::unique_ptr<io::Listener> listener_;
  Mutex mutex_;
  bool ended_ TREADLE_GUARDED_BY(mutex_) = false;
  std::map<int, std::shared_ptr<PendingHandshake>> pending_ TREADLE_GUARDED_BY(mutex_);
  Host host_ TREADLE_GUARDED_BY(mutex_);
  Strangers strangers_ TREADLE_GUARDED_BY(mutex_);
};

Status Acceptor::Core::begin(io::Fd listener) {
  io::Listener::Host host;
  host.connected = [weak = weak_from_this()](io::Fd fd) {
    if (auto self = weak.lock()) self->accept(std::move(fd));
  };
  host.failed = [weak = weak_from_this()](const Status& why) {
    if (auto self = weak.lock()) self->refused("any address", why.message());
  };
  auto started = io::Listener::start(reactor_, std::move(listener), std::move(host));
  if (!started.ok()) return std::move(started).status();
  listener_ = std::move(*started);
  return {};
}

// Another user's process is turned away before it could send a byte. Whose the others on a UNIX socket are the kernel
// has said: they wait for nobody.
void Acceptor::Core::accept(io::Fd fd) {
  Result<io::Address> from = io::Address::ofPeer(fd.get());
  if (!from.ok()) return;  // it is gone
  if (address_.isUnix() && !io::peerIsSameUser(fd.get()))
    return refused("another user of this host", "a job is of one user");
  const std::string source = from->network();
  std::shared_ptr<PendingHandshake> givesWay;  // goes without the lock
  MutexLock lock(mutex_);
  const Duration wait = address_.isUnix() ? Duration::zero() : strangers_.waitOf(source, Clock::now());
  if (ended_ || wait > timeout_ / 2) return;  // it would hardly have its turn
  Result<io::Stream> stream = streamOf(std::move(fd));
  if (!stream.ok()) return logWarn(credentials_.self.worker.name, stream.status().message());
  auto pending = std::make_shared<PendingHandshake>(shared_from_this(), std::move(*stream), source);
  if (Status begun = pending->begin(wait); !begun.ok()) return logWarn(credentials_.self.worker.name, begun.message());
  if (pending_.size() >= atOnce_) givesWay = takeOneOfMost();
  pending_.emplace(pending->fd(), std::move(pending));
  lock.unlock();
  if (givesWay) givesWay->giveWay();
}

// Of the source with the most connections that shake hands the one that has had the longest time for it.
std::shared_ptr<PendingHandshake> Acceptor::Core::takeOneOfMost() {
  std::map<std::string, size_t> counts;
  for (const auto& [fd, one] : pending_) ++counts[one->source()];
  auto fewer = [](const auto& one, const auto& other) { return one.second < other.second; };
  const std::string most = std::max_element(counts.begin(), counts.end(), fewer)->first;
  auto oldest = pending_.end();
  for (auto one = pending_.begin(); one != pending_.end(); ++one)
    if (one->second->source() == most && (oldest == pending_.end() || one->second->since() < oldest->second->since()))
      oldest = one;
  std::shared_ptr<PendingHandshake> taken = std::move(oldest->second);
  pending_.erase(oldest);
  return taken;
}

// It has waited because of others from where it came.
void Acceptor::Core::turnOf(PendingHandshake& pending) {
  MutexLock lock(mutex_);
  auto found = pending_.find(pending.fd());
  if (ended_ || found == pending_.end() || found->second.get() != &pending) return;
  if (Status listens = pending.listen(); !listens.ok()) logWarn(credentials_.self.worker.name, listens.message());
}

Result<io::Stream> Acceptor::Core::streamOf(io::Fd fd) const {
  if (!encrypts_) return io::Stream(std::move(fd));
  Result<std::unique_ptr<io::Tls>> tls = io::Tls::make(credentials_.tls, fd.get(), io::Tls::Role::kAcceptor);
  if (!tls.ok()) return std::move(tls).status();
  return io::Stream(std::move(fd), std::move(*tls));
}

void Acceptor::Core::refused(const std::string& source, const std::string& why) {
  MutexLock lock(mutex_);
  std::optional<std::string> line = strangers_.refused(source, why, Clock::now());
  lock.unlock();
  if (line) logWarn(credentials_.self.worker.name, *line);
}

void Acceptor::Core::drop(int fd) {
  std::shared_ptr<PendingHandshake> last;
  MutexLock lock(mutex_);
  auto found = pending_.find(fd);
  if (found == pending_.end()) return;
  last = std::move(found->second);
  pending_.erase(found);
  lock.unlock();
  last->stop();
}

Status Acceptor::Core::check(const Hello& hello) {
  MutexLock lock(mutex_);
  return ended_ ? peerLost("", "this worker takes no more connections") : host_.check(hello);
}

void Acceptor::Core::hand(int fd, Hello hello) {
  MutexLock lock(mutex_);
  auto found = pending_.find(fd);
  if (found == pending_.end() || ended_) return;
  std::shared_ptr<PendingHandshake> pending = std::move(found->second);
  pending_.erase(found);
  pending->stop();
  host_.accept(pending->release(), std::move(hello));
}

void Acceptor::Core::end() {
  std::map<int, std::shared_ptr<PendingHandshake>> pending;
  {
    MutexLock lock(mutex_);
    ended_ = true;
    pending.swap(pending_);
  }
  listener_.reset();
  for (auto& [fd, one] : pending) one->stop();
}

Result<std::unique_ptr<Acceptor>> Acceptor::start(io::Reactor& reactor, io::Fd listener, Credentials credentials,
                                                  Host host) {
  Result<io::Address> address = io::Address::ofSocket(listener.get());
  if (!address.ok()) return std::move(address).status();
  TREADLE_RETURN_IF_ERROR(credentials.checkUse(*address));
  auto core = std::make_shared<Core>(reactor, std::move(credentials), std::move(host), *address);
  TREADLE_RETURN_IF_ERROR(core->begin(std::move(listener)));
  return std::unique_ptr<Acceptor>(new Acceptor(std::move(core), *address));  // NOLINT: private constructor
}

Acceptor::~Acceptor() { core_->end(); }

}  // namespace treadle::link

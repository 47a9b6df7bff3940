// The acceptor's side of the handshake: one small state machine per connection, on the reactor's thread.

#include "treadle/core/base/log.h"
#include "treadle/core/link/handshake_messages.h"

namespace treadle::link {
namespace {

// Strangers can cost no more than so many sockets and read buffers, for the ten seconds that each has.
constexpr size_t kAtOnce = 1024;  // connections that shake hands at a time; more are turned away

class Pending;

}  // namespace

class Acceptor::Core : public io::EventHandler, public std::enable_shared_from_this<Core> {
 public:
  Core(io::Reactor& reactor, io::Fd listener, Credentials credentials, Host host, bool isUnix)
      : reactor_(reactor),
        listener_(std::move(listener)),
        credentials_(std::move(credentials)),
        isUnix_(isUnix),
        timeout_(host.timeout),
        host_(std::move(host)) {}

  Status begin() { return reactor_.add(listener_.get(), EPOLLIN, shared_from_this()); }
  void end();
  void onEvents(uint32_t events) override;
  void drop(int fd);
  Status check(const Hello& hello);
  void hand(int fd, Hello hello);

  const Credentials& credentials() const { return credentials_; }
  io::Reactor& reactor() { return reactor_; }
  Duration timeout() const { return timeout_; }

 private:
  void accept(io::Fd fd);
  void pause(const Status& why);
  void resume();

  io::Reactor& reactor_;
  const io::Fd listener_;
  const Credentials credentials_;
  const bool isUnix_;
  const Duration timeout_;
  Mutex mutex_;
  bool ended_ TREADLE_GUARDED_BY(mutex_) = false;
  std::map<int, std::shared_ptr<Pending>> pending_ TREADLE_GUARDED_BY(mutex_);
  Host host_ TREADLE_GUARDED_BY(mutex_);
};

namespace {

// One connection that has not passed yet.
class Pending : public io::EventHandler, public std::enable_shared_from_this<Pending> {
 public:
  Pending(std::shared_ptr<Acceptor::Core> core, io::Fd fd)
      : core_(std::move(core)),
        fd_(std::move(fd)),
        reader_(handshakeLimits()),
        onFrame_([this](Frame frame) { status_ = onFrame(frame); }) {}

  Status begin() {
    TREADLE_RETURN_IF_ERROR(core_->reactor().add(fd_.get(), EPOLLIN, shared_from_this()));
    timer_ = core_->reactor().at(deadlineAfter(core_->timeout()), [weak = weak_from_this()] {
      if (auto self = weak.lock()) self->fail(deadlineExceeded("it did not end its handshake in time"));
    });
    return {};
  }

  void onEvents(uint32_t) override {
    auto self = shared_from_this();
    Result<bool> got = reader_.readFrom(fd_.get(), onFrame_);
    if (!status_.ok()) return fail(status_);
    if (done_) return;
    if (!got.ok()) fail(got.status());
  }

  void stop() {
    core_->reactor().cancel(timer_);
    core_->reactor().remove(fd_.get());
  }

  io::Fd release() { return std::move(fd_); }
  int fd() const { return fd_.get(); }

 private:
  Status onFrame(const Frame& frame) {
    if (done_ || !status_.ok()) return dataLoss("it sent something before it was welcome");
    Result<Incoming> incoming = parseHandshake(frame);
    if (!incoming.ok()) return std::move(incoming).status();
    if (incoming->step == Step::kHello && hello_.empty()) return onHello(*incoming);
    if (incoming->step == Step::kProof && !hello_.empty()) return onProof(*incoming);
    return dataLoss("it sent a handshake message out of turn");
  }

  Status onHello(const Incoming& incoming) {
    peer_ = {incoming.greeting.purpose, incoming.greeting.worker};
    hello_ = incoming.greetingBytes;
    Greeting challenge{kProtocolVersion, core_->credentials().self.purpose, core_->credentials().self.worker,
                       randomNonce()};
    challenge_ = encodeGreeting(Step::kChallenge, challenge);
    Proof proof = proofOf(core_->credentials().jobKey, "acceptor", hello_, challenge_);
    std::vector<std::byte> message = challenge_;
    message.insert(message.end(), proof.begin(), proof.end());
    return say(message);
  }

  Status onProof(const Incoming& incoming) {
    if (!sameProof(incoming.proof, proofOf(core_->credentials().jobKey, "dialer", hello_, challenge_)))
      return unauthenticated("the job key is not the one of this job");
    TREADLE_RETURN_IF_ERROR(core_->check(peer_));
    TREADLE_RETURN_IF_ERROR(say(encodeStep(Step::kWelcome, {})));
    done_ = true;
    core_->hand(fd_.get(), peer_);
    return {};
  }

  // A handshake's few bytes fit into any fresh socket; a peer that made them not fit is not waited for.
  Status say(Bytes message) { return io::writeAll(fd_.get(), handshakeFrame(message), Clock::now()); }

  // The sentence goes out in clear to whoever asked, so it holds nothing but what went wrong.
  void fail(const Status& why) {
    logWarn(core_->credentials().self.worker.name, "a connection was refused: " + why.message());
    say(encodeReject(why)).ignore();  // it may be gone or no worker at all
    core_->drop(fd_.get());
  }

  const std::shared_ptr<Acceptor::Core> core_;  // a cycle until the connection is handed over or dropped
  io::Fd fd_;
  FrameReader reader_;
  UniqueFunction<void(Frame)> onFrame_;
  io::Reactor::TimerId timer_ = 0;
  Hello peer_;
  std::vector<std::byte> hello_, challenge_;
  Status status_;
  bool done_ = false;
};

}  // namespace

void Acceptor::Core::onEvents(uint32_t) {
  for (;;) {
    Result<io::Fd> fd = io::acceptFrom(listener_.get());
    if (!fd.ok()) return pause(fd.status());
    if (!fd->valid()) return;
    accept(std::move(*fd));
  }
}

// No descriptor is left, as a rule. The listener would be ready again and again until there is one.
void Acceptor::Core::pause(const Status& why) {
  constexpr Duration kPause = std::chrono::milliseconds(100);
  logWarn(credentials_.self.worker.name, why.message());
  MutexLock lock(mutex_);
  if (ended_) return;
  reactor_.change(listener_.get(), 0);
  reactor_.at(Clock::now() + kPause, [weak = weak_from_this()] {
    if (auto self = weak.lock()) self->resume();
  });
}

void Acceptor::Core::resume() {
  MutexLock lock(mutex_);
  if (!ended_) reactor_.change(listener_.get(), EPOLLIN);
}

// Another user's process is turned away before it could send a byte.
void Acceptor::Core::accept(io::Fd fd) {
  if (isUnix_ && !io::peerIsSameUser(fd.get()))
    return logWarn(credentials_.self.worker.name, "a connection of another user was refused");
  auto pending = std::make_shared<Pending>(shared_from_this(), std::move(fd));
  MutexLock lock(mutex_);
  if (ended_ || pending_.size() >= kAtOnce) return;
  if (Status begun = pending->begin(); !begun.ok()) return logWarn(credentials_.self.worker.name, begun.message());
  pending_.emplace(pending->fd(), std::move(pending));
}

void Acceptor::Core::drop(int fd) {
  std::shared_ptr<Pending> last;
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
  return ended_ ? cancelled("this worker takes no more connections") : host_.check(hello);
}

void Acceptor::Core::hand(int fd, Hello hello) {
  MutexLock lock(mutex_);
  auto found = pending_.find(fd);
  if (found == pending_.end() || ended_) return;
  std::shared_ptr<Pending> pending = std::move(found->second);
  pending_.erase(found);
  pending->stop();
  host_.accept(pending->release(), std::move(hello));
}

void Acceptor::Core::end() {
  std::map<int, std::shared_ptr<Pending>> pending;
  {
    MutexLock lock(mutex_);
    ended_ = true;
    pending.swap(pending_);
  }
  reactor_.remove(listener_.get());
  for (auto& [fd, one] : pending) one->stop();
}

Result<std::unique_ptr<Acceptor>> Acceptor::start(io::Reactor& reactor, io::Fd listener, Credentials credentials,
                                                  Host host) {
  Result<io::Address> address = io::Address::ofSocket(listener.get());
  if (!address.ok()) return std::move(address).status();
  auto core =
      std::make_shared<Core>(reactor, std::move(listener), std::move(credentials), std::move(host), address->isUnix());
  TREADLE_RETURN_IF_ERROR(core->begin());
  return std::unique_ptr<Acceptor>(new Acceptor(std::move(core), *address));  // NOLINT: private constructor
}

Acceptor::~Acceptor() { core_->end(); }

}  // namespace treadle::link

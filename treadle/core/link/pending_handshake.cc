#include "treadle/core/link/pending_handshake.h"

#include <sys/socket.h>

namespace treadle::link {

PendingHandshake::PendingHandshake(std::shared_ptr<HandshakeHost> host, io::Stream stream, std::string source)
    : host_(std::move(host)),
      stream_(std::move(stream)),
      fd_(stream_.fd()),
      source_(std::move(source)),
      secure_(stream_.tls() == nullptr),
      reader_(handshakeLimits()),
      onFrame_([this](Frame frame) { status_ = onFrame(frame); }) {}

Status PendingHandshake::begin(Duration wait) {
  if (wait == Duration::zero()) TREADLE_RETURN_IF_ERROR(listen());
  if (wait > Duration::zero())
    turn_ = host_->reactor().at(deadlineAfter(wait), [weak = weak_from_this()] {
      if (auto self = weak.lock()) self->host_->turnOf(*self);
    });
  timer_ = host_->reactor().at(deadlineAfter(host_->timeout()), [weak = weak_from_this()] {
    if (auto self = weak.lock()) self->fail(deadlineExceeded("it did not end its handshake in time"));
  });
  return {};
}

void PendingHandshake::stop() {
  host_->reactor().cancel(timer_);
  host_->reactor().cancel(turn_);
  host_->reactor().remove(fd_);
}

void PendingHandshake::giveWay() {
  host_->refused(source_, "too many others were shaking hands");
  stop();
  (void)::shutdown(fd_, SHUT_RDWR);
}

void PendingHandshake::onEvents(uint32_t) {
  auto self = shared_from_this();
  if (!secure_) {
    Result<bool> done = stream_.tls()->shakeHands();
    if (!done.ok()) return stream_.tls()->heard() ? fail(done.status()) : host_->drop(fd_);
    if (!*done) return host_->reactor().change(fd_, stream_.tls()->flushed() ? EPOLLIN : EPOLLIN | EPOLLOUT);
    host_->reactor().change(fd_, EPOLLIN);
    secure_ = true;
  }
  Result<bool> got = reader_.readFrom(stream_, onFrame_);
  if (done_) return;
  if (!status_.ok()) return fail(status_);
  heard_ = heard_ || (got.ok() && *got);
  if (got.ok()) return;
  // Who comes and goes without a word, a health check say, is no stranger.
  const bool silent = !heard_ && stream_.tls() == nullptr && got.status().code() == Code::kPeerLost;
  silent ? host_->drop(fd_) : fail(got.status());
}

Status PendingHandshake::onFrame(const Frame& frame) {
  if (done_ || !status_.ok()) return dataLoss("it sent something before it was welcome");
  Result<Incoming> incoming = parseHandshake(frame);
  if (!incoming.ok()) return std::move(incoming).status();
  if (incoming->step == Step::kHello && hello_.empty()) return onHello(*incoming);
  if (incoming->step == Step::kProof && !hello_.empty()) return onProof(*incoming);
  return dataLoss("it sent a handshake message out of turn");
}

Status PendingHandshake::onHello(const Incoming& incoming) {
  peer_ = {incoming.greeting.purpose, incoming.greeting.worker, incoming.greeting.number};
  hello_ = incoming.greetingBytes;
  key_ = proofKey(host_->credentials(), stream_, peer_.purpose, host_->port());
  Greeting challenge{kProtocolVersion, host_->credentials().self.purpose, host_->credentials().self.worker,
                     randomNonce()};
  challenge_ = encodeGreeting(Step::kChallenge, challenge);
  Proof proof = proofOf(key_, "acceptor", hello_, challenge_);
  std::vector<std::byte> message = challenge_;
  message.insert(message.end(), proof.begin(), proof.end());
  return say(message);
}

Status PendingHandshake::onProof(const Incoming& incoming) {
  if (!sameProof(incoming.proof, proofOf(key_, "dialer", hello_, challenge_)))
    return unauthenticated("the job key is not the one of this job");
  TREADLE_RETURN_IF_ERROR(host_->check(peer_));
  TREADLE_RETURN_IF_ERROR(say(encodeStep(Step::kWelcome, {})));
  done_ = true;
  host_->hand(fd_, peer_);
  return {};
}

// A handshake's few bytes fit into any fresh socket; a peer that made them not fit is not waited for.
Status PendingHandshake::say(Bytes message) { return io::writeAll(stream_, handshakeFrame(message), Clock::now()); }

// The sentence may go out in clear to whoever asked, so it holds nothing but what went wrong.
void PendingHandshake::fail(const Status& why) {
  host_->refused(source_, why.message());
  // It may be gone or no worker at all. Who does not speak TLS hears so without; else TLS has said what it has to.
  if (secure_) say(encodeReject(why)).ignore();
  if (!secure_ && why.code() == Code::kFailedPrecondition)
    io::writeAll(fd_, handshakeFrame(encodeReject(why)), Clock::now()).ignore();
  discardInput();
  host_->drop(fd_);
}

// A socket that is closed with unread bytes takes back what was said on it.
void PendingHandshake::discardInput() const {
  std::array<std::byte, 4096> bytes;
  for (int i = 0; i < 16 && ::recv(fd_, bytes.data(), bytes.size(), MSG_DONTWAIT) > 0; ++i) {}
}

}  // namespace treadle::link

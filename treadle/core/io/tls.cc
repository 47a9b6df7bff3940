#include "treadle/core/io/tls.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509_vfy.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

// Budget of a record of 16 KiB: written, one lock, OpenSSL's copy into its record (in the cache), one send; small parts
// are gathered by one more copy. Read: one lock, two recv (its header, its body), OpenSSL's copy to where the bytes go.
namespace treadle::io {
namespace {

constexpr size_t kRecordBytes = 16U << 10;  // the most that one may hold
constexpr size_t kReadBytes = 256U << 10;   // of a call, and what is left of the last record
// Answers to what a peer asks for in the handshake and after it: above that it asks without reading.
constexpr size_t kUnsentBytes = 64U << 10;
// A peer that has not proved anything is not listened to for longer; certificates of a long chain have room.
constexpr size_t kHandshakeBytes = 64U << 10;
// In one call: what comes is then no data, but updates of keys without end, and others are to have their turn.
constexpr size_t kReceives = 64;
constexpr Duration kLookUp = std::chrono::milliseconds(100);
constexpr int kHandshakeRecord = 22, kAlertRecord = 21;

std::string lastReason() {
  const char* reason = ::ERR_reason_error_string(::ERR_peek_last_error());
  return reason == nullptr ? "no reason given" : reason;
}

bool refusedByPeer() {
  constexpr int kFirstAlert = SSL_AD_REASON_OFFSET;  // OpenSSL's numbers of the peer's alerts
  return ::ERR_GET_LIB(::ERR_peek_last_error()) == ERR_LIB_SSL &&
         ::ERR_GET_REASON(::ERR_peek_last_error()) >= kFirstAlert;
}

}  // namespace

// The socket, as OpenSSL sees it. All of them run within its calls, which hold the lock.
struct Tls::Callbacks {
  static Tls& of(BIO* bio) { return *static_cast<Tls*>(::BIO_get_data(bio)); }

  static int read(BIO* bio, char* to, int size) TREADLE_ANNOTATE(no_thread_safety_analysis) {
    BIO_clear_retry_flags(bio);
    int got = of(bio).receive(to, size);
    if (got < 0 && of(bio).receiveError_ == 0) BIO_set_retry_read(bio);
    return got;
  }
  static int write(BIO* bio, const char* from, int size) TREADLE_ANNOTATE(no_thread_safety_analysis) {
    BIO_clear_retry_flags(bio);
    return of(bio).send(from, size);
  }
  static long control(BIO* bio, int command, long, void*) TREADLE_ANNOTATE(no_thread_safety_analysis) {
    if (command == BIO_CTRL_EOF) return of(bio).ended_ ? 1 : 0;
    return command == BIO_CTRL_FLUSH ? 1 : 0;
  }
};

BIO_METHOD* Tls::method() {
  static BIO_METHOD* const method = [] {
    BIO_METHOD* made = ::BIO_meth_new(::BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "treadle socket");
    (void)::BIO_meth_set_read(made, &Callbacks::read);
    (void)::BIO_meth_set_write(made, &Callbacks::write);
    (void)::BIO_meth_set_ctrl(made, &Callbacks::control);
    return made;
  }();
  return method;
}

Result<std::unique_ptr<Tls>> Tls::make(std::shared_ptr<const TlsContext> context, int fd, Role role) {
  std::unique_ptr<Tls> tls(new Tls(std::move(context), fd));  // NOLINT: private constructor
  MutexLock lock(tls->mutex_);
  TREADLE_RETURN_IF_ERROR(tls->begin(role));
  lock.unlock();
  return tls;
}

Status Tls::begin(Role role) {
  ssl_ = ::SSL_new(context_->context_);
  BIO* bio = ::BIO_new(method());
  if (ssl_ == nullptr || bio == nullptr) {
    ::BIO_free(bio);
    return resourceExhausted("no memory for a TLS connection");
  }
  ::BIO_set_data(bio, this);
  ::BIO_set_init(bio, 1);
  ::SSL_set_bio(ssl_, bio, bio);
  role == Role::kDialer ? ::SSL_set_connect_state(ssl_) : ::SSL_set_accept_state(ssl_);
  return {};
}

Tls::~Tls() { ::SSL_free(ssl_); }

int Tls::receive(char* to, int size) {
  if (done_ && ++receives_ > kReceives) return -1;
  ssize_t got = ::recv(fd_, to, static_cast<size_t>(size), receiveFlags_);
  if (got > 0 && !done_ && (handshakeBytes_ += static_cast<size_t>(got)) > kHandshakeBytes) {
    receiveError_ = EMSGSIZE;
    return -1;
  }
  if (got > 0 && !std::exchange(heard_, true)) notTls_ = *to != kHandshakeRecord && *to != kAlertRecord;
  if (got == 0) ended_ = true;
  if (got < 0 && errno != EAGAIN && errno != EINTR) receiveError_ = errno;
  return static_cast<int>(got);
}

// Takes all: what the socket does not is kept, so that OpenSSL never asks for the same call again. A socket that broke
// is told to who writes, and not to OpenSSL, which would not read on then: the peer's last word may still be there.
int Tls::send(const char* from, int size) {
  Bytes bytes = std::as_bytes(std::span(from, static_cast<size_t>(size)));
  if (unsent_.empty() && sendError_ == 0) {
    ssize_t sent = ::send(fd_, from, static_cast<size_t>(size), sendFlags_ | MSG_NOSIGNAL);
    if (sent < 0 && errno != EAGAIN && errno != EINTR) sendError_ = errno;
    if (sent > 0) bytes = bytes.subspan(static_cast<size_t>(sent));
  }
  if (sendError_ != 0) return size;
  if (unsent_.size() + bytes.size() > kUnsentBytes) return -1;
  unsent_.insert(unsent_.end(), bytes.begin(), bytes.end());
  return size;
}

bool Tls::flush() {
  if (unsent_.empty()) return true;
  ssize_t sent = ::send(fd_, unsent_.data(), unsent_.size(), sendFlags_ | MSG_NOSIGNAL);
  if (sent < 0 && errno != EAGAIN && errno != EINTR) sendError_ = errno;
  if (sent > 0) unsent_.erase(unsent_.begin(), unsent_.begin() + sent);
  if (sendError_ != 0) unsent_.clear();
  return unsent_.empty();
}

Result<bool> Tls::shakeHands() {
  MutexLock lock(mutex_);
  receiveFlags_ = sendFlags_ = MSG_DONTWAIT;
  (void)flush();
  ::ERR_clear_error();
  int result = ::SSL_do_handshake(ssl_);
  if (result == 1) {
    // Who took the key has resumed "its session"; anybody else has proved nothing.
    if (!context_->options().hasCertificates() && ::SSL_session_reused(ssl_) != 1)
      return unauthenticated("it does not know this job's key");
    done_ = true;
    return true;
  }
  if (::SSL_get_error(ssl_, result) == SSL_ERROR_WANT_READ) return false;
  return whyShakingFailed();
}

Status Tls::whyShakingFailed() {
  if (notTls_)
    return failedPrecondition(
        "it does not speak TLS, which this worker does at this address; give all workers of a job the same of "
        "JoinOptions::allowPlaintext and JoinOptions::tls (TREADLE_TLS)");
  if (ended_) return Status(Code::kPeerLost, "it closed the connection in the TLS handshake");
  if (receiveError_ != 0)
    return Status(Code::kPeerLost,
                  std::string("the connection broke in the TLS handshake: ") + std::strerror(receiveError_));
  std::string why = lastReason();
  if (long verified = ::SSL_get_verify_result(ssl_); verified != X509_V_OK && !refusedByPeer())
    why = std::string("its certificate: ") + ::X509_verify_cert_error_string(verified);
  return unauthenticated("the TLS handshake failed (" + why +
                         "); start all workers of a job with the same key, or with certificates of one authority");
}

// Up to a record's worth, or what is left of one. As recv(2).
ssize_t Tls::readRecord(std::byte* to, size_t size, int flags) {
  MutexLock lock(mutex_);
  if (!failure_.ok()) return errno = EBADMSG, -1;
  receiveFlags_ = flags;
  sendFlags_ = MSG_DONTWAIT;
  receives_ = 0;
  ::ERR_clear_error();
  size_t got = 0;
  int result = ::SSL_read_ex(ssl_, to, size, &got);
  if (result == 1) {
    heardData_ = true;
    return static_cast<ssize_t>(got);
  }
  int error = ::SSL_get_error(ssl_, result);
  if (error == SSL_ERROR_WANT_READ) return errno = EAGAIN, -1;
  if (error == SSL_ERROR_ZERO_RETURN || ended_) return 0;
  if (receiveError_ != 0) return errno = receiveError_, -1;
  failure_ = refusedByPeer() && !heardData_
                 ? unauthenticated("it refused this worker in the TLS handshake (" + lastReason() + ")")
                 : dataLoss("TLS found that what it sent was damaged on the way (" + lastReason() + ")");
  return errno = EBADMSG, -1;
}

ssize_t Tls::read(std::span<const iovec> parts, int flags) {
  size_t total = 0;
  for (const iovec& part : parts) {
    for (size_t filled = 0; filled < part.iov_len;) {
      if (total >= kReadBytes && pending() == 0) return static_cast<ssize_t>(total);
      ssize_t got = readRecord(static_cast<std::byte*>(part.iov_base) + filled, part.iov_len - filled, flags);
      if (got <= 0) return total > 0 ? static_cast<ssize_t>(total) : got;
      filled += static_cast<size_t>(got);
      total += static_cast<size_t>(got);
    }
  }
  return static_cast<ssize_t>(total);
}

// What goes into the next record of the bytes behind `offset`: straight from where it is if it fills one.
Bytes Tls::nextRecord(std::span<const iovec> parts, size_t offset) {
  gathered_.clear();
  for (const iovec& part : parts) {
    if (offset >= part.iov_len) {
      offset -= part.iov_len;
      continue;
    }
    Bytes rest = Bytes(static_cast<const std::byte*>(part.iov_base), part.iov_len).subspan(offset);
    rest = rest.first(std::min(rest.size(), kRecordBytes - gathered_.size()));
    offset = 0;
    if (rest.size() == kRecordBytes) return rest;
    gathered_.insert(gathered_.end(), rest.begin(), rest.end());
    if (gathered_.size() == kRecordBytes) break;
  }
  return gathered_;
}

size_t Tls::writeRecord(Bytes bytes) {
  rekey(bytes.size());
  ::ERR_clear_error();
  size_t written = 0;
  if (::SSL_write_ex(ssl_, bytes.data(), bytes.size(), &written) == 1) return written;
  // OpenSSL has given the connection up: when it found what came to be damaged, as a rule.
  if (sendError_ == 0) sendError_ = failure_.ok() ? EPIPE : EBADMSG;
  return 0;
}

void Tls::rekey(size_t bytes) {
  sinceRekey_ += bytes;
  if (sinceRekey_ < context_->options().rekeyBytes) return;
  sinceRekey_ = 0;
  (void)::SSL_key_update(ssl_, SSL_KEY_UPDATE_NOT_REQUESTED);  // goes ahead of the next record
}

ssize_t Tls::write(std::span<const iovec> parts, int flags) {
  size_t total = 0, taken = 0;
  for (const iovec& part : parts) total += part.iov_len;
  // A socket that blocks does so for a while at each record: who writes is to look up in between.
  const bool waits = (flags & MSG_DONTWAIT) == 0;
  const TimePoint lookUp = deadlineAfter(kLookUp);
  do {
    MutexLock lock(mutex_);
    sendFlags_ = flags;
    receiveFlags_ = MSG_DONTWAIT;
    const bool room = flush();
    if (sendError_ != 0) return errno = sendError_, -1;
    if (!room || total == 0) break;
    Bytes record = nextRecord(parts, taken);
    // The kernel joins the records of one call to segments of its own size.
    if (taken + record.size() < total) sendFlags_ |= MSG_MORE;
    taken += writeRecord(record);
    if (waits && (!unsent_.empty() || Clock::now() > lookUp)) break;
  } while (taken < total);
  if (taken == 0 && total > 0) return errno = EAGAIN, -1;
  return static_cast<ssize_t>(taken);
}

size_t Tls::pending() const {
  MutexLock lock(mutex_);
  return failure_.ok() ? static_cast<size_t>(::SSL_pending(ssl_)) : 1;
}

bool Tls::heard() const {
  MutexLock lock(mutex_);
  return heard_;
}

bool Tls::flushed() const {
  MutexLock lock(mutex_);
  return unsent_.empty();
}

Status Tls::failure() const {
  MutexLock lock(mutex_);
  return failure_.ok() ? dataLoss("TLS gave the connection up") : failure_;
}

void Tls::closeWrite() {
  MutexLock lock(mutex_);
  if (!done_) return;
  sendFlags_ = receiveFlags_ = MSG_DONTWAIT;
  ::ERR_clear_error();
  (void)::SSL_shutdown(ssl_);
}

std::string Tls::channelSecret() const {
  constexpr std::string_view kLabel = "EXPORTER-treadle-link";
  std::string secret(32, '\0');
  MutexLock lock(mutex_);
  if (::SSL_export_keying_material(ssl_, reinterpret_cast<unsigned char*>(secret.data()), secret.size(), kLabel.data(),
                                   kLabel.size(), nullptr, 0, 0) != 1)
    return {};
  return secret;
}

}  // namespace treadle::io

#pragma once
// TLS 1.3 (RFC 8446) over a TCP socket, by OpenSSL: `TlsContext` is what a worker proves itself with, `Tls` one
// connection. Both sides prove themselves: by a key that they share (an external PSK, always with a fresh
// Diffie-Hellman exchange, so that who learns the key later reads nothing of before), or by certificates of one
// authority.
//
// A Tls never waits for room in the socket: what has been encrypted and not been taken is kept, one record and the rest
// of a handshake at most, and goes out before anything else does. Nothing is read ahead of the record that is being
// read: what epoll(7) says of the socket holds, once `pending` says that no decrypted byte is left.
//
// TlsContext: immutable; any thread. Tls: one thread may read while another writes; a lock, held for a record at a
// time, is around OpenSSL, which does not admit that.

#include <sys/uio.h>

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "treadle/core/base/buffer.h"
#include "treadle/core/base/mutex.h"
#include "treadle/core/base/status.h"

struct ssl_st;
struct ssl_ctx_st;
struct ssl_session_st;
struct bio_st;
struct bio_method_st;

namespace treadle::io {

struct TlsOptions {
  std::string key;  // what both sides know; not used with certificates
  // PEM files: this side's certificate and those it was issued by, its private key, the authority that both sides'
  // certificates must come from. All three or none.
  std::string certificateFile, keyFile, authorityFile;
  // A sender takes a new key after so many bytes: far below what AES-GCM admits under one (RFC 8446 section 5.5).
  uint64_t rekeyBytes = uint64_t{1} << 36;

  bool hasCertificates() const { return !certificateFile.empty(); }
};

class TlsContext {
 public:
  // InvalidArgument naming the file that cannot be used, or when there is neither a key nor certificates.
  static Result<std::shared_ptr<const TlsContext>> make(TlsOptions options);
  ~TlsContext();
  TlsContext(const TlsContext&) = delete;
  TlsContext& operator=(const TlsContext&) = delete;

  const TlsOptions& options() const { return options_; }

 private:
  friend class Tls;
  explicit TlsContext(TlsOptions options) : options_(std::move(options)) {}
  Status begin();
  Status useKey();
  Status useCertificates();

  // For OpenSSL: the session that stands for the key.
  static ssl_session_st* sessionOf(ssl_st* ssl);
  static int findSession(ssl_st* ssl, const unsigned char* identity, size_t size, ssl_session_st** session);
  static int useSession(ssl_st* ssl, const void* hash, const unsigned char** identity, size_t* size,
                        ssl_session_st** session);

  const TlsOptions options_;
  std::vector<unsigned char> secret_;  // derived from the key
  ssl_ctx_st* context_ = nullptr;
};

class Tls {
 public:
  enum class Role { kDialer, kAcceptor };
  // `fd` is a connected TCP socket, which must stay open for as long as this lives.
  static Result<std::unique_ptr<Tls>> make(std::shared_ptr<const TlsContext> context, int fd, Role role);
  ~Tls();
  Tls(const Tls&) = delete;
  Tls& operator=(const Tls&) = delete;

  // Goes on as far as the socket's bytes allow: true when it is done, false when more must come. Unauthenticated: the
  // peer does not prove itself, or does not take this side's proof. FailedPrecondition: it does not speak TLS.
  // PeerLost.
  Result<bool> shakeHands();

  // As recvmsg(2) and sendmsg(2), `flags` included; a read takes 256 KiB and a record at most. EBADMSG: what `failure`
  // says. 0: the end, or the stream was cut: who needs to know has messages of its own.
  ssize_t read(std::span<const iovec> parts, int flags);
  ssize_t write(std::span<const iovec> parts, int flags);
  // Bytes that are decrypted and not handed out; at least one when the next read fails.
  size_t pending() const;
  // Nothing that has been taken by `write`, or that is to be said in the handshake, waits for the socket.
  bool flushed() const;
  // DataLoss: a record was damaged. Unauthenticated: the peer took this side's proof back.
  Status failure() const;
  // Whether a byte has come.
  bool heard() const;
  // Says that no more comes.
  void closeWrite();

  // 32 bytes that the two ends of this connection alone know (RFC 8446 section 7.5): proofs that are made with it hold
  // for no other connection.
  std::string channelSecret() const;

 private:
  struct Callbacks;
  Tls(std::shared_ptr<const TlsContext> context, int fd) : context_(std::move(context)), fd_(fd) {}

  Status begin(Role role) TREADLE_REQUIRES(mutex_);
  static bio_method_st* method();
  int receive(char* to, int size) TREADLE_REQUIRES(mutex_);
  int send(const char* from, int size) TREADLE_REQUIRES(mutex_);
  bool flush() TREADLE_REQUIRES(mutex_);
  size_t writeRecord(Bytes bytes) TREADLE_REQUIRES(mutex_);
  Bytes nextRecord(std::span<const iovec> parts, size_t offset) TREADLE_REQUIRES(mutex_);
  ssize_t readRecord(std::byte* to, size_t size, int flags);
  void rekey(size_t bytes) TREADLE_REQUIRES(mutex_);
  Status whyShakingFailed() TREADLE_REQUIRES(mutex_);

  const std::shared_ptr<const TlsContext> context_;
  const int fd_;
  mutable Mutex mutex_;
  ssl_st* ssl_ TREADLE_GUARDED_BY(mutex_) = nullptr;
  int receiveFlags_ TREADLE_GUARDED_BY(mutex_) = 0, sendFlags_ TREADLE_GUARDED_BY(mutex_) = 0;  // of the call below
  bool done_ TREADLE_GUARDED_BY(mutex_) = false;                                                // the handshake
  bool heard_ TREADLE_GUARDED_BY(mutex_) = false;                                               // a byte came
  bool notTls_ TREADLE_GUARDED_BY(mutex_) = false;  // the first was none of TLS
  bool ended_ TREADLE_GUARDED_BY(mutex_) = false;   // the socket has no more
  bool heardData_ TREADLE_GUARDED_BY(mutex_) = false;
  size_t receives_ TREADLE_GUARDED_BY(mutex_) = 0;        // of the call below
  size_t handshakeBytes_ TREADLE_GUARDED_BY(mutex_) = 0;  // that came
  int receiveError_ TREADLE_GUARDED_BY(mutex_) = 0, sendError_
                                                    TREADLE_GUARDED_BY(mutex_) = 0;  // of the socket, for good
  std::vector<std::byte> unsent_ TREADLE_GUARDED_BY(mutex_);                         // encrypted
  std::vector<std::byte> gathered_ TREADLE_GUARDED_BY(mutex_);                       // small parts that share a record
  uint64_t sinceRekey_ TREADLE_GUARDED_BY(mutex_) = 0;
  Status failure_ TREADLE_GUARDED_BY(mutex_);
};

}  // namespace treadle::io

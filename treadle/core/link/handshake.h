#pragma once
// How two workers come to trust a connection before anything else is read from it (docs/protocol/link.md). Both
// prove that they know the job's key by HMAC-SHA256 (RFC 2104) over both sides' greetings and nonces; the key itself
// never travels. A peer that speaks another protocol version, knows another key or sends anything else is told so in
// one sentence, where it can be told, and dropped.
//
//   dialer -> acceptor   Hello      version, purpose, number, rank, name, nonce
//   acceptor -> dialer   Challenge  version, purpose, number, rank, name, nonce, proof of the acceptor
//   dialer -> acceptor   Proof      proof of the dialer
//   acceptor -> dialer   Welcome    or, in place of Challenge or Welcome, Reject: code and sentence
//
// The proofs cover the greetings of both, so that neither name, rank, purpose, number nor nonce can be exchanged on the
// way, and the role of who proves, so that a proof cannot be sent back to its maker.
//
// Where the link is TLS the handshake goes through it, and the key of the proofs is followed by a secret that only the
// two ends of this TLS connection have: who stands between two of them cannot pass proofs on. Without TLS what follows
// the handshake is neither encrypted nor authenticated: that is why plain TCP beyond this host's loopback is for users
// who say `allowPlaintext` (worker/security.h).

#include <array>
#include <map>
#include <optional>
#include <string>

#include "treadle/core/io/reactor.h"
#include "treadle/core/io/socket.h"
#include "treadle/core/io/stream.h"
#include "treadle/core/link/message.h"

namespace treadle::link {

inline constexpr size_t kNameBytes = 127;
inline constexpr Duration kHandshakeTimeout = std::chrono::seconds(10);

// What a connection is for. The numbers travel on the wire: never renumber.
enum class Purpose : uint8_t {
  kRendezvous = 1,
  kPeer = 2,         // to carry what the dialer asks, and the answers
  kRequestLane = 3,  // for large buffers of what the dialer asks
  kAnswerLane = 4,   // for those of what the dialer answers
  kSummation = 5,    // for the sums of a summation service
};

struct Hello {
  Purpose purpose = Purpose::kPeer;
  WorkerInfo worker;
  uint64_t number = 0;  // of the summation service; 0 for other purposes
};

struct Credentials {
  std::string jobKey;  // may be empty where all links are TLS with certificates
  Hello self;          // `purpose` and `number` count for the dialer only
  // Null: TCP is in clear. Otherwise TCP beyond the loopback is TLS, and on it too with `tlsOnLoopback`.
  std::shared_ptr<const io::TlsContext> tls = {};
  bool tlsOnLoopback = false;
  bool unixSockets = false;  // may be used to meet

  // Whether links to, or accepted at, this address are TLS: both sides come to the same.
  bool encrypts(const io::Address& address) const;
  // FailedPrecondition: nothing would keep strangers out at this address.
  Status checkUse(const io::Address& address) const;
  // Beside a loopback port where workers meet: a UNIX socket, at which the kernel turns other users away. Its name
  // follows from the key and the port, so nobody else can bind it first. None without a key or `unixSockets`.
  std::optional<io::Address> meetingSocket(const io::Address& port) const;
};

struct Dialed {
  io::Stream stream;
  WorkerInfo peer;
};

// Connects and shakes hands, on the calling thread. The peer has `patience` to show that it knows the key; after that
// it counts on this side, which waits until `deadline`. PeerLost: nobody there, or it went away, again and again.
// Unauthenticated: another key, or no certificate of the authority. FailedPrecondition: another protocol version, TLS
// on one side alone, or the acceptor's own reason.
Result<Dialed> dial(const io::Address& address, const Credentials& credentials, TimePoint deadline,
                    Duration patience = Duration::max());

// Accepts connections on a listening socket, shakes hands with each on the reactor's thread and hands over those who
// passed. UNIX sockets take peers of this user only. Others cost a log line for each source (strangers.h). Many
// shake hands at a time, 1,024 or an eighth of the process's descriptors; beyond that the one that has taken longest,
// of the address with the most of them, gives way. Each has kHandshakeTimeout for it.
class Acceptor {
 public:
  struct Host {
    // Whether a peer that proved to know the key is wanted; a failed status is told to it as Reject.
    UniqueFunction<Status(const Hello&)> check;
    // It has been welcomed and may send from now on.
    UniqueFunction<void(io::Stream, Hello)> accept;
    // How long a connection may take over its handshake.
    Duration timeout = kHandshakeTimeout;
  };

  static Result<std::unique_ptr<Acceptor>> start(io::Reactor& reactor, io::Fd listener, Credentials credentials,
                                                 Host host);
  // No callback runs any more when the reactor's thread is stopped; until then one that has begun may.
  ~Acceptor();

  const io::Address& address() const { return address_; }

 private:
  class Core;
  Acceptor(std::shared_ptr<Core> core, io::Address address) : core_(std::move(core)), address_(address) {}

  std::shared_ptr<Core> core_;
  io::Address address_;
};

}  // namespace treadle::link

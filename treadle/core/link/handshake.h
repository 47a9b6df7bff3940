#pragma once
// How two workers come to trust a connection before anything else is read from it (docs/protocol/link.md). Both
// prove that they know the job's key by HMAC-SHA256 (RFC 2104) over both sides' greetings and nonces; the key itself
// never travels. A peer that speaks another protocol version, knows another key or sends anything else is told so in
// one sentence, where it can be told, and dropped.
//
//   dialer -> acceptor   Hello      version, purpose, rank, name, nonce
//   acceptor -> dialer   Challenge  version, purpose, rank, name, nonce, proof of the acceptor
//   dialer -> acceptor   Proof      proof of the dialer
//   acceptor -> dialer   Welcome    or, in place of Challenge or Welcome, Reject: code and sentence
//
// The proofs cover the greetings of both, so that neither name, rank, purpose nor nonce can be exchanged on the way,
// and the role of who proves, so that a proof cannot be sent back to its maker. What follows the handshake is neither
// encrypted nor authenticated: that is why addresses outside of this host's loopback are refused unless the user says
// `insecure` (worker/core.cc).

#include <array>
#include <map>
#include <string>

#include "treadle/core/io/reactor.h"
#include "treadle/core/io/socket.h"
#include "treadle/core/link/message.h"

namespace treadle::link {

// Raised with every change that a peer of the version before would misread: there is no negotiation, and a
// job runs one release.
inline constexpr uint16_t kProtocolVersion = 6;
inline constexpr size_t kNameBytes = 127;
inline constexpr Duration kHandshakeTimeout = std::chrono::seconds(10);

// What a connection is for. The numbers travel on the wire: never renumber.
enum class Purpose : uint8_t {
  kRendezvous = 1,
  kPeer = 2,         // to carry what the dialer asks, and the answers
  kRequestLane = 3,  // for large buffers of what the dialer asks
  kAnswerLane = 4,   // for those of what the dialer answers
};

struct Hello {
  Purpose purpose = Purpose::kPeer;
  WorkerInfo worker;
};

struct Credentials {
  std::string jobKey;  // never empty
  Hello self;          // `purpose` counts for the dialer only
};

struct Dialed {
  io::Fd fd;
  WorkerInfo peer;
};

// One attempt to connect and to shake hands, on the calling thread. PeerLost: nobody there, or it went away.
// Unauthenticated: another key. FailedPrecondition: another protocol version, or the acceptor's own reason.
Result<Dialed> dial(const io::Address& address, const Credentials& credentials, TimePoint deadline);

// Accepts connections on a listening socket, shakes hands with each on the reactor's thread and hands over those who
// passed. UNIX sockets take peers of this user only. Others cost a log line. Any number shake hands at a time, up to a
// limit; each has kHandshakeTimeout for it.
class Acceptor {
 public:
  struct Host {
    // Whether a peer that proved to know the key is wanted; a failed status is told to it as Reject.
    UniqueFunction<Status(const Hello&)> check;
    // It has been welcomed and may send from now on.
    UniqueFunction<void(io::Fd, Hello)> accept;
    // How long a connection may take over its handshake.
    Duration timeout = kHandshakeTimeout;
  };

  static Result<std::unique_ptr<Acceptor>> start(io::Reactor& reactor, io::Fd listener, Credentials credentials,
                                                 Host host);
  // No callback runs any more when the reactor's thread is stopped; until then one that has begun may.
  ~Acceptor();

  const io::Address& address() const { return address_; }

  class Core;

 private:
  Acceptor(std::shared_ptr<Core> core, io::Address address) : core_(std::move(core)), address_(address) {}

  std::shared_ptr<Core> core_;
  io::Address address_;
};

}  // namespace treadle::link

#pragma once
// The four messages of the handshake as bytes, and the proofs. Pure functions; see handshake.h for the story.

#include <variant>

#include "treadle/core/link/frame_reader.h"
#include "treadle/core/link/handshake.h"

namespace treadle::link {

// Raised with every change that a peer of the version before would misread: there is no negotiation, and a
// job runs one release.
inline constexpr uint16_t kProtocolVersion = 32;

using Nonce = std::array<std::byte, 32>;
using Proof = std::array<std::byte, 32>;

struct Greeting {  // Hello, and Challenge without its proof
  uint16_t version = kProtocolVersion;
  Purpose purpose = Purpose::kPeer;
  WorkerInfo worker;
  Nonce nonce{};
  uint64_t number = 0;
};

enum class Step : uint8_t { kHello = 1, kChallenge = 2, kProof = 3, kWelcome = 4, kReject = 5 };

Nonce randomNonce();  // throws InternalError when the system has no randomness

std::vector<std::byte> encodeGreeting(Step step, const Greeting& greeting);
Bytes asBytes(const Proof& proof);

// The whole frame for one step with `body` after the step's byte.
std::vector<std::byte> handshakeFrame(Bytes message);
std::vector<std::byte> encodeStep(Step step, Bytes body);
std::vector<std::byte> encodeReject(const Status& why);

// What came in a handshake frame. DataLoss when it is none; FailedPrecondition for another version, naming both.
struct Incoming {
  Step step = Step::kReject;
  Greeting greeting;  // kHello, kChallenge
  Proof proof{};      // kChallenge, kProof
  Status reason;      // kReject
  std::vector<std::byte> greetingBytes;
};
Result<Incoming> parseHandshake(const Frame& frame);

// HMAC-SHA256(key, role, hello, challenge) (RFC 2104, computed by OpenSSL): what `role` ("dialer", "acceptor") proves
// its knowledge of the key with.
Proof proofOf(const std::string& key, std::string_view role, Bytes hello, Bytes challenge);
// The key of the proofs on this stream: the job's, made this connection's own where it is TLS. In clear, where workers
// meet, it belongs to the port of the acceptor: whoever listens at another that they try cannot pass on what is said.
std::string proofKey(const Credentials& credentials, const io::Stream& stream, Purpose purpose, uint16_t port);
bool sameProof(const Proof& a, const Proof& b);  // in constant time

// What a handshake may take before the peer is known.
// 8 KiB of payload and no buffers' bytes: the largest message is a Reject with a sentence of 4,096.
wire::FrameLimits handshakeLimits();

}  // namespace treadle::link

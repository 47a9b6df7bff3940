// The dialer's side of the handshake: blocking, on the thread that joins.

#include <algorithm>

#include "treadle/core/io/retry.h"
#include "treadle/core/link/handshake_messages.h"
#include "treadle/core/link/strangers.h"

namespace treadle::link {
namespace {

// The next handshake message, a rejection turned into its status. Nothing beyond it is read: what follows the welcome
// is for the connection.
Result<Incoming> receive(io::Stream& stream, TimePoint deadline) {
  Result<Frame> frame = readOneFrame(stream, handshakeLimits(), deadline);
  if (!frame.ok())
    return frame.status().code() == Code::kDeadlineExceeded ? deadlineExceeded("the peer does not answer the handshake")
                                                            : frame.status();
  Result<Incoming> incoming = parseHandshake(*frame);
  if (incoming.ok() && incoming->step == Step::kReject) return incoming->reason;
  return incoming;
}

// The acceptor proves itself first, by `answerBy`: a dialer gives its own proof to nobody who does not know the key.
Status shakeHands(io::Stream& stream, const Credentials& credentials, uint16_t port, TimePoint answerBy,
                  TimePoint deadline, WorkerInfo& peer) {
  const std::string key = proofKey(credentials, stream, credentials.self.purpose, port);
  Greeting hello{kProtocolVersion, credentials.self.purpose, credentials.self.worker, randomNonce(),
                 credentials.self.number};
  std::vector<std::byte> helloBytes = encodeGreeting(Step::kHello, hello);
  TREADLE_RETURN_IF_ERROR(io::writeAll(stream, handshakeFrame(helloBytes), answerBy));
  Result<Incoming> challenge = receive(stream, answerBy);
  if (!challenge.ok()) return std::move(challenge).status();
  if (challenge->step != Step::kChallenge) return dataLoss("it answered the greeting with something else");
  Bytes challengeBytes = challenge->greetingBytes;
  if (!sameProof(challenge->proof, proofOf(key, "acceptor", helloBytes, challengeBytes)))
    return unauthenticated("it does not know this job's key; start all workers of a job with the same one");
  Proof proof = proofOf(key, "dialer", helloBytes, challengeBytes);
  TREADLE_RETURN_IF_ERROR(io::writeAll(stream, handshakeFrame(encodeStep(Step::kProof, proof)), deadline));
  Result<Incoming> welcome = receive(stream, deadline);
  if (!welcome.ok()) return std::move(welcome).status();
  if (welcome->step != Step::kWelcome) return dataLoss("it answered the proof with something else");
  peer = challenge->greeting.worker;
  return {};
}

// On a socket that is connected. PeerLost: it closed it.
Result<Dialed> greet(io::Fd fd, const io::Address& address, const Credentials& credentials, TimePoint answerBy,
                     TimePoint deadline) {
  if (address.isUnix() && !io::peerIsSameUser(fd.get()))
    return unauthenticated(address.toString() + " belongs to a process of another user");
  Result<io::Stream> stream = credentials.encrypts(address) ? io::startTls(std::move(fd), credentials.tls, answerBy)
                                                            : Result<io::Stream>(io::Stream(std::move(fd)));
  if (!stream.ok()) return stream.status().withContext("the worker at " + address.toString());
  Dialed dialed{std::move(*stream), {}};
  Status shaken = shakeHands(dialed.stream, credentials, address.port(), answerBy, deadline, dialed.peer);
  if (!shaken.ok()) return shaken.withContext("the worker at " + address.toString());
  return dialed;
}

}  // namespace

// An acceptor to which strangers come in numbers lets go of connections to have room for others; one that has ended
// cannot be connected to.
Result<Dialed> dial(const io::Address& address, const Credentials& credentials, TimePoint deadline, Duration patience) {
  constexpr Duration kPatience = std::chrono::seconds(2);
  static_assert(std::chrono::seconds(Strangers::kMostOwed / Strangers::kPerSecond) - kHandshakeTimeout / 2 < kPatience,
                "by then an acceptor takes connections again, if no more strangers come from this address");
  TREADLE_RETURN_IF_ERROR(credentials.checkUse(address));
  const TimePoint last = std::min(deadline, deadlineAfter(kPatience));
  for (Duration interval{};;) {
    const TimePoint answerBy = std::min(deadline, deadlineAfter(patience));
    Result<io::Fd> fd = io::connectTo(address, answerBy);
    if (!fd.ok()) return std::move(fd).status();
    Result<Dialed> dialed = greet(std::move(*fd), address, credentials, answerBy, deadline);
    const bool closed = !dialed.ok() && dialed.status().code() == Code::kPeerLost;
    if (!closed || !io::waitForRetry(interval, last)) return dialed;
  }
}

}  // namespace treadle::link

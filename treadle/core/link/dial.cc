// The dialer's side of the handshake: blocking, on the thread that joins.

#include "treadle/core/link/handshake_messages.h"

namespace treadle::link {
namespace {

// The next handshake message, a rejection turned into its status. Nothing beyond it is read: what follows the welcome
// is for the connection.
Result<Incoming> receive(int fd, TimePoint deadline) {
  Result<Frame> frame = readOneFrame(fd, handshakeLimits(), deadline);
  if (!frame.ok())
    return frame.status().code() == Code::kDeadlineExceeded ? deadlineExceeded("the peer does not answer the handshake")
                                                            : frame.status();
  Result<Incoming> incoming = parseHandshake(*frame);
  if (incoming.ok() && incoming->step == Step::kReject) return incoming->reason;
  return incoming;
}

// The acceptor proves itself first: a dialer gives its own proof to nobody who does not know the key.
Status shakeHands(int fd, const Credentials& credentials, TimePoint deadline, WorkerInfo& peer) {
  Greeting hello{kProtocolVersion, credentials.self.purpose, credentials.self.worker, randomNonce()};
  std::vector<std::byte> helloBytes = encodeGreeting(Step::kHello, hello);
  TREADLE_RETURN_IF_ERROR(io::writeAll(fd, handshakeFrame(helloBytes), deadline));
  Result<Incoming> challenge = receive(fd, deadline);
  if (!challenge.ok()) return std::move(challenge).status();
  if (challenge->step != Step::kChallenge) return dataLoss("it answered the greeting with something else");
  Bytes challengeBytes = challenge->greetingBytes;
  if (!sameProof(challenge->proof, proofOf(credentials.jobKey, "acceptor", helloBytes, challengeBytes)))
    return unauthenticated("it does not know this job's key; start all workers of a job with the same one");
  Proof proof = proofOf(credentials.jobKey, "dialer", helloBytes, challengeBytes);
  TREADLE_RETURN_IF_ERROR(io::writeAll(fd, handshakeFrame(encodeStep(Step::kProof, proof)), deadline));
  Result<Incoming> welcome = receive(fd, deadline);
  if (!welcome.ok()) return std::move(welcome).status();
  if (welcome->step != Step::kWelcome) return dataLoss("it answered the proof with something else");
  peer = challenge->greeting.worker;
  return {};
}

}  // namespace

Result<Dialed> dial(const io::Address& address, const Credentials& credentials, TimePoint deadline) {
  Result<io::Fd> fd = io::connectTo(address, deadline);
  if (!fd.ok()) return std::move(fd).status();
  if (address.isUnix() && !io::peerIsSameUser(fd->get()))
    return unauthenticated(address.toString() + " belongs to a process of another user");
  Dialed dialed{std::move(*fd), {}};
  Status shaken = shakeHands(dialed.fd.get(), credentials, deadline, dialed.peer);
  if (!shaken.ok()) return shaken.withContext("the worker at " + address.toString());
  return dialed;
}

}  // namespace treadle::link

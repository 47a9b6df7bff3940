// A worker's side of the rendezvous.

#include "treadle/core/cluster/rendezvous_messages.h"
#include "treadle/core/cluster/retry.h"

namespace treadle::cluster {
namespace {

// How long whoever answers at one of several ports may take to show that it is rank 0.
constexpr Duration kStrangersTime = std::chrono::seconds(2);

Status say(int fd, Bytes message, TimePoint deadline) {
  return io::writeAll(
      fd, wire::frameFront(wire::FrameKind::kMessage, static_cast<uint8_t>(link::Subject::kCluster), message, {}),
      deadline);
}

// No name: rank 0's is known to those alone who have the roster.
Status rankZeroLost(const Status& why) {
  return peerLost("", "rank 0, where the workers meet, was lost before all had joined: " + why.message());
}

// The next message. Nothing beyond it is read: another may follow at once.
Result<RendezvousMessage> next(int fd, TimePoint deadline) {
  Result<link::Frame> frame = link::readOneFrame(fd, rendezvousLimits(), deadline);
  if (!frame.ok())
    return frame.status().code() == Code::kDeadlineExceeded
               ? deadlineExceeded("rank 0, where the workers meet, said nothing before the join timeout")
               : rankZeroLost(frame.status());
  if (frame->header.kind == wire::FrameKind::kLeave) return rankZeroLost(cancelled("it left"));
  return parseRendezvous(frame->payload);
}

// The next message, kFail turned into its status.
Result<RendezvousMessage> receive(int fd, Step expected, TimePoint deadline) {
  Result<RendezvousMessage> message = next(fd, deadline);
  if (!message.ok()) return message;
  if (message->step == Step::kFail) return message->failure;
  if (message->step != expected) return dataLoss("rank 0 sent a message out of turn at the rendezvous");
  return message;
}

}  // namespace

// Of one address "nobody there" alone may pass by waiting; a wrong key or version will not. Of several each may be a
// stranger's, also one that says nothing.
Result<std::unique_ptr<RendezvousClient>> RendezvousClient::connect(const std::vector<io::Address>& masters,
                                                                    link::Credentials credentials, TimePoint deadline) {
  credentials.self.purpose = link::Purpose::kRendezvous;
  const bool several = masters.size() > 1;
  Duration interval{};
  Status last;
  do {
    for (const io::Address& master : masters) {
      TimePoint patience = several ? std::min(deadline, deadlineAfter(kStrangersTime)) : deadline;
      Result<link::Dialed> dialed = link::dial(master, credentials, patience);
      if (dialed.ok())
        return std::unique_ptr<RendezvousClient>(new RendezvousClient(std::move(dialed->fd)));  // NOLINT: private
      last = std::move(dialed).status();
      if (!several && last.code() != Code::kPeerLost && last.code() != Code::kDeadlineExceeded) return last;
    }
  } while (waitForRetry(interval, deadline));
  std::string others = several ? " or at " + std::to_string(masters.size() - 1) + " other ports" : "";
  return deadlineExceeded("the master at " + masters.front().toString() + others + " cannot be reached (" +
                          last.message() + "); check MASTER_ADDR and MASTER_PORT, and that rank 0 runs");
}

Result<Roster> RendezvousClient::exchange(int worldSize, const std::vector<std::string>& addresses,
                                          TimePoint deadline) {
  Duration timeLeft = deadline == kNever ? kWhilePeerLives : deadline - Clock::now();
  Status said = say(fd_.get(), encodeRegistration({worldSize, addresses, timeLeft}), deadline);
  if (!said.ok()) return rankZeroLost(said);
  Result<RendezvousMessage> message = receive(fd_.get(), Step::kRoster, deadline);
  if (!message.ok()) return std::move(message).status();
  return std::move(message->roster);
}

Status RendezvousClient::ready(TimePoint deadline) {
  Status said = say(fd_.get(), encodeStep(Step::kReady), deadline);
  if (!said.ok()) return rankZeroLost(said);
  return receive(fd_.get(), Step::kGo, deadline).status();
}

Status RendezvousClient::giveUp(const Status& why, TimePoint deadline) {
  if (!say(fd_.get(), encodeFailure(why), deadline).ok()) return why;
  Result<RendezvousMessage> verdict = next(fd_.get(), deadline);
  return verdict.ok() && verdict->step == Step::kFail ? verdict->failure : why;
}

}  // namespace treadle::cluster

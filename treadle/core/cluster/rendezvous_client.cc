// A worker's side of the rendezvous.

#include "treadle/core/cluster/launch.h"
#include "treadle/core/cluster/rendezvous_messages.h"
#include "treadle/core/io/retry.h"

namespace treadle::cluster {
namespace {

// The longest that a program may take to show that it is rank 0, where that may be elsewhere. Rank 0 itself may take
// longer at a port to which strangers come in numbers.
constexpr Duration kStrangersTime = std::chrono::seconds(2);

// The sockets beside the ports come first: no stranger can keep this worker waiting there.
std::vector<io::Address> placesToTry(const std::vector<io::Address>& ports, const link::Credentials& credentials) {
  std::vector<io::Address> places;
  for (const io::Address& port : ports)
    if (std::optional<io::Address> socket = credentials.meetingSocket(port)) places.push_back(*socket);
  places.insert(places.end(), ports.begin(), ports.end());
  return places;
}

// A failure does not count: the client reads on after a failed write, as rank 0 may have said why before it went. If it
// did not, reading fails too.
void say(io::Stream& stream, Bytes message, TimePoint deadline) {
  io::writeAll(stream,
               wire::frameFront(wire::FrameKind::kMessage, static_cast<uint8_t>(link::Subject::kCluster), message, {}),
               deadline)
      .ignore();
}

}  // namespace

std::string RendezvousClient::whereTheyMeet() const { return link::describe(server_) + ", where the workers meet, "; }

Status RendezvousClient::serverLost(const Status& why) const {
  return peerLost(server_.name, whereTheyMeet() + "was lost before all had joined: " + why.message());
}

// The next message. Nothing beyond it is read: another may follow at once.
Result<RendezvousMessage> RendezvousClient::next(TimePoint deadline) {
  Result<link::Frame> frame = link::readOneFrame(stream_, rendezvousLimits(), deadline);
  if (!frame.ok())
    return frame.status().code() == Code::kDeadlineExceeded
               ? deadlineExceeded(whereTheyMeet() + "said nothing before the join timeout").withWorker(server_.name)
               : serverLost(frame.status());
  if (frame->header.kind == wire::FrameKind::kLeave) return serverLost(cancelled("it left"));
  Result<RendezvousMessage> message = parseRendezvous(frame->payload);
  if (message.ok() && message->step == Step::kFail) verdict_ = message->failure;
  return message;
}

// Of one address "nobody there" alone may pass by waiting; a wrong key or version will not. Of several each may be a
// stranger's, also one that says nothing; so may a port be that has a socket beside it. A worker that fails at the
// socket goes on to the port, and hears there what is wrong.
Result<std::unique_ptr<RendezvousClient>> RendezvousClient::connect(const MasterAddresses& masters,
                                                                    link::Credentials credentials, TimePoint deadline,
                                                                    bool uncertain) {
  credentials.self.purpose = link::Purpose::kRendezvous;
  Duration interval{};
  Status last;
  std::string where = "the master";
  do {
    Result<std::vector<io::Address>> addresses = masters();
    if (!addresses.ok() && addresses.status().code() != Code::kNotFound) return std::move(addresses).status();
    if (!addresses.ok()) {
      last = addresses.status();
      continue;
    }
    const bool several = addresses->size() > 1;
    where = "the master at " + addresses->front().toString() +
            (several ? " or at " + std::to_string(addresses->size() - 1) + " other ports" : "");
    const std::vector<io::Address> places = placesToTry(*addresses, credentials);
    for (const io::Address& place : places) {
      const bool mayBeElsewhere = place.isUnix() || several || uncertain;
      const Duration patience = mayBeElsewhere ? kStrangersTime : link::kHandshakeTimeout;
      Result<link::Dialed> dialed = link::dial(place, credentials, deadline, patience);
      if (dialed.ok())
        return std::unique_ptr<RendezvousClient>(
            new RendezvousClient(std::move(dialed->stream), std::move(dialed->peer)));  // NOLINT: private
      if (place.isUnix()) continue;
      last = std::move(dialed).status();
      if (!several && !uncertain && last.code() != Code::kPeerLost && last.code() != Code::kDeadlineExceeded)
        return last;
    }
  } while (io::waitForRetry(interval, deadline));
  return deadlineExceeded(where + " cannot be reached (" + last.message() +
                          "); check MASTER_ADDR and MASTER_PORT, and that rank 0 runs");
}

// The next message but for probes, which are echoed at once, and those that tell of a loss; kFail turned into its
// status.
Result<RendezvousMessage> RendezvousClient::receive(Step expected, TimePoint deadline) {
  for (;;) {
    Result<RendezvousMessage> message = next(deadline);
    if (!message.ok()) return message;
    if (message->step == Step::kFail) return message->failure;
    if (message->step == expected) return message;
    if (message->step == Step::kProbe) {
      say(stream_, encodeEcho(message->number), deadline);
      continue;
    }
    if (message->step != Step::kGone) return dataLoss(whereTheyMeet() + "sent a message out of turn");
    onGone_(message->rank);
  }
}

Result<bool> RendezvousClient::awaitGone(TimePoint deadline) {
  if (!stream_.pending() && !io::waitFor(stream_.fd(), POLLIN, deadline)) return false;
  Result<RendezvousMessage> message = receive(Step::kGone, deadlineAfter(link::kHandshakeTimeout));
  if (!message.ok()) return std::move(message).status();
  onGone_(message->rank);
  return true;
}

Result<int> RendezvousClient::awaitRank(TimePoint deadline) {
  Result<RendezvousMessage> message = receive(Step::kRank, deadline);
  if (!message.ok()) return std::move(message).status();
  if (message->rank < 1 || message->rank >= kMaxWorldSize) return dataLoss("the job gave this worker no rank");
  return message->rank;
}

Result<Present> RendezvousClient::comeIn(const std::vector<std::string>& addresses, TimePoint deadline) {
  Duration timeLeft = deadline == kNever ? kNoTimeout : deadline - Clock::now();
  say(stream_, encodeRegistration({kOpenWorld, addresses, timeLeft}), deadline);
  Result<RendezvousMessage> message = receive(Step::kPresent, deadline);
  if (!message.ok()) return std::move(message).status();
  return std::move(message->present);
}

Result<Roster> RendezvousClient::exchange(World world, const std::vector<std::string>& addresses, TimePoint deadline) {
  Duration timeLeft = deadline == kNever ? kNoTimeout : deadline - Clock::now();
  say(stream_, encodeRegistration({world, addresses, timeLeft}), deadline);
  Result<RendezvousMessage> message = receive(Step::kRoster, deadline);
  if (!message.ok()) return std::move(message).status();
  costs_ = message->costs;
  return std::move(message->roster);
}

Status RendezvousClient::ready(TimePoint deadline) {
  say(stream_, encodeStep(Step::kReady), deadline);
  return receive(Step::kGo, deadline).status();
}

Status RendezvousClient::giveUp(const Status& why, TimePoint deadline) {
  if (!verdict_.ok()) return verdict_;
  say(stream_, encodeFailure(why), deadline);
  Result<RendezvousMessage> verdict = next(deadline);
  if (!verdict.ok()) return verdict.status().code() == Code::kPeerLost ? verdict.status() : why;
  return verdict->step == Step::kFail ? verdict->failure : why;
}

}  // namespace treadle::cluster

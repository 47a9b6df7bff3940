#pragma once
// Who comes to where a job meets and knows its key. One thread, which polls the reactor of whoever listens.

#include <sys/socket.h>

#include <set>

#include "tests/fuzz/polled.h"
#include "tests/fuzz/silent_member.h"
#include "treadle/core/cluster/rendezvous_messages.h"
#include "treadle/core/link/handshake_messages.h"

namespace treadle::fuzz {

inline const std::string kMeetingKey = "the key of this job";

// One that has dialed, and is in or was refused: it says what the fuzzer wants, and keeps what it hears.
class MeetingGuest {
 public:
  MeetingGuest(io::Reactor& reactor, const io::Address& meeting, const WorkerInfo& worker)
      : worker_(worker), stream_(valueOrThrow(io::connectTo(meeting, deadlineAfter(std::chrono::seconds(60))))) {
    const std::vector<std::byte> hello =
        link::encodeGreeting(link::Step::kHello, {link::kProtocolVersion, link::Purpose::kRendezvous, worker, {}});
    write(link::handshakeFrame(hello));
    pollAll(reactor);
    read([&](const link::Frame& frame) {
      Result<link::Incoming> challenge = link::parseHandshake(frame);
      promise(challenge.ok() && challenge->step == link::Step::kChallenge, "a greeting is answered by a challenge");
      link::Proof proof = link::proofOf(kMeetingKey, "dialer", hello, challenge->greetingBytes);
      write(link::handshakeFrame(link::encodeStep(link::Step::kProof, proof)));
    });
    pollAll(reactor);
  }

  void say(Bytes message) {
    write(wire::frameFront(wire::FrameKind::kMessage, static_cast<uint8_t>(link::Subject::kCluster), message, {}));
  }
  void go() { stream_ = io::Stream(); }
  // What has come since. Echoes probes, as a worker that waits does; true when there was one.
  bool hear() {
    if (gone()) return false;
    bool probed = false;
    read([&](const link::Frame& frame) { probed = take(frame) || probed; });
    return probed;
  }

  const WorkerInfo& worker() const { return worker_; }
  bool gone() const { return stream_.fd() < 0; }
  bool in() const { return in_; }
  bool heard(cluster::Step step) const { return heard_.contains(step); }
  const cluster::Roster& roster() const { return roster_; }
  int rank() const { return rank_; }  // that it was given

 private:
  void write(Bytes bytes) { (void)::send(stream_.fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT); }
  void read(UniqueFunction<void(link::Frame)> onFrame) {
    for (Result<bool> more = true; more.ok() && *more;) more = reader_.readFrom(stream_, onFrame);
  }
  bool take(const link::Frame& frame) {
    if (!in_ && !refused_) {
      Result<link::Incoming> verdict = link::parseHandshake(frame);
      promise(verdict.ok(), "a proof is answered by a verdict");
      in_ = verdict->step == link::Step::kWelcome;
      refused_ = !in_;
      return false;
    }
    if (frame.header.kind != wire::FrameKind::kMessage) return false;
    Result<cluster::RendezvousMessage> message = cluster::parseRendezvous(frame.payload);
    promise(message.ok(), "what the server says can be read");
    heard_.insert(message->step);
    if (message->step == cluster::Step::kRoster) roster_ = message->roster;
    if (message->step == cluster::Step::kPresent) roster_ = message->present.workers;
    if (message->step == cluster::Step::kRank) rank_ = message->rank;
    if (message->step != cluster::Step::kProbe) return false;
    say(cluster::encodeEcho(message->number));
    return true;
  }

  const WorkerInfo worker_;
  io::Stream stream_;
  link::FrameReader reader_{cluster::rendezvousLimits()};
  bool in_ = false, refused_ = false;
  std::set<cluster::Step> heard_;
  cluster::Roster roster_;
  int rank_ = -1;
};

}  // namespace treadle::fuzz

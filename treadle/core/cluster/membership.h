#pragma once
// The workers of one job as this one sees them: a connection to and from each, who lives, and what was the first loss.
// Owned by the worker; the rooms above send through it and are told what arrives and who is lost.
//
// Each pair of workers has two sockets: the one that this worker dialed carries what it asks and the peer's answers,
// the one that the peer dialed the reverse. A worker is also connected to itself, so that nothing above needs a
// special case for it. A peer is lost when a socket closes without its farewell, or when nothing came from it for
// `lostAfter`: heartbeats, or a number in shared memory that it counts up, see to it that a living one is heard. A
// process that was stopped or starved itself forgives its peers the time it was away.
//
// Any thread may call anything. Handlers are called on the reading thread and must not wait.
//
// Budget of `outgoing`: one uncontended lock. Of a message that arrives: none. Of a second: connection.cc.

#include <array>
#include <atomic>
#include <functional>
#include <optional>
#include <vector>

#include "treadle/core/link/channels.h"
#include "treadle/core/link/connection.h"
#include "treadle/core/link/handshake.h"

namespace treadle::cluster {

struct MembershipOptions {
  // Heartbeats go five times in that time where nothing else is sent, and the silence is measured as often: a peer is
  // given up after 1 to 1.2 times as long, or up to 1.4 where a pulse in shared memory stands for them.
  Duration lostAfter = std::chrono::seconds(5);
  link::ConnectionOptions connection;
  size_t lendLimitBytes = 0;  // of connection.pool's blocks that a peer may hold at a time; 0: no memory is shared
  bool lanes = false;         // large buffers may have sockets of their own
};

class MessageHandler {
 public:
  virtual ~MessageHandler() = default;
  // `from` is the connection the message came on, for an answer on the same socket.
  virtual void onMessage(int rank, const std::shared_ptr<link::Connection>& from, link::Message message) = 0;
  // None can be sent to `rank` any more, and none comes but what a thread is reading at this moment. Once for each
  // lost rank; not for one that left because the job is over.
  virtual void onLost(int rank, const Status& why) = 0;
};

class Membership {
 public:
  Membership(io::Reactor& reactor, WorkerInfo self, int worldSize, MembershipOptions options);
  ~Membership();

  // Before the first connection is attached. The handler must outlive `close`.
  void setHandler(link::Subject subject, MessageHandler& handler);

  // kServing: the peer dialed. The peer's name comes from the handshake. FailedPrecondition when there is one already.
  Status attach(const WorkerInfo& peer, io::Fd fd, link::Connection::Kind kind);

  // A socket that a peer dialed for large buffers: those of its requests or of its answers. FailedPrecondition when the
  // connection it belongs to is not there.
  Status attachLane(int rank, io::Fd fd, link::Purpose purpose);
  // How this worker dials one. Before the first connection is attached; on the thread that sends.
  using DialLane = std::function<Result<io::Fd>(int rank, link::Purpose purpose, TimePoint deadline)>;
  void setLaneDialer(DialLane dial) { dialLane_ = std::move(dial); }

  // Heartbeats and the watch for silent peers begin; every peer is attached.
  void startWatch();

  const WorkerInfo& self() const { return self_; }
  int worldSize() const { return static_cast<int>(members_.size()); }
  // Valid for ranks that are attached.
  WorkerInfo info(int rank) const;
  // NotFound naming the workers that there are.
  Result<int> rankOf(std::string_view name) const;
  // NotFound for a rank outside of the job.
  Status checkRank(int rank) const;

  // The connection that this worker's messages to `rank` go on; why not, when it is lost or was never there.
  Result<std::shared_ptr<link::Connection>> outgoing(int rank) const;
  Status send(int rank, link::Subject subject, Bytes payload, std::span<const Buffer> buffers, link::SendMode mode,
              TimePoint deadline);

  // Of the connections with `rank`: what is in use, and why the rest is not. `why` of a socket is left to who dialed
  // it. What `outgoing` says when there is none.
  Result<PeerChannels> channels(int rank) const;

  // OK while nobody is lost; then the first loss, which is the cause of those that follow, as a rule.
  Status firstLoss() const;

  // From now on a peer that goes is not lost: the job is over for all.
  void finish() { finished_.store(true); }

  // Says farewell to all and closes; bounded by the deadline. `reason` is why this worker leaves while others may need
  // it, and empty when the job is over.
  void close(const std::string& reason, TimePoint deadline);

 private:
  class Peer;

  void lose(int rank, const Status& why);
  void tick();
  std::optional<uint64_t> beat();
  void scheduleTick();

  io::Reactor& reactor_;
  const WorkerInfo self_;
  const MembershipOptions options_;
  std::array<MessageHandler*, link::kSubjects> handlers_{};
  DialLane dialLane_;
  std::vector<std::unique_ptr<Peer>> members_;  // by rank
  std::atomic<bool> finished_ = false;

  mutable Mutex mutex_;
  Status firstLoss_ TREADLE_GUARDED_BY(mutex_);
  bool closed_ TREADLE_GUARDED_BY(mutex_) = false;
  std::optional<io::Reactor::TimerId> timer_ TREADLE_GUARDED_BY(mutex_);
  TimePoint lastTick_{}, forgivenUntil_{};  // reactor's thread
  std::shared_ptr<memory::Block> pulse_;    // likewise; null where no memory is shared
};

}  // namespace treadle::cluster

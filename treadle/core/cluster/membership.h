#pragma once
// The workers of one job as this one sees them: a connection to and from each, who lives, and what was the first loss.
// Owned by the worker; the rooms above send through it and are told what arrives and who is lost.
//
// Each pair of workers has two sockets: the one that this worker dialed carries what it asks and the peer's answers,
// the one that the peer dialed the reverse. A worker is also connected to itself, so that nothing above needs a
// special case for it. A peer is lost when a socket closes without its farewell, or when nothing came from it for
// `heartbeatTimeout`: heartbeats, or a number in shared memory that it counts up, see to it that a living one is heard.
// A process that was stopped or starved itself forgives its peers the time it was away, unless they have given it up
// meanwhile: then they have told it so, and all of them are lost to it.
//
// In an open job workers come and go. Their ranks are never given out again, so that a rank is a name for one worker.
//
// Any thread may call anything. Handlers are called on the reading thread and must not wait.
//
// Budget of `outgoing`: one uncontended lock. Of `rankOf` for a worker that is here: no lock and no
// allocation, whatever the number of workers.
// Of a message that arrives: none. Of a second: connection.cc.

#include <array>
#include <atomic>
#include <functional>
#include <optional>
#include <vector>

#include "treadle/core/base/growing_table.h"
#include "treadle/core/cluster/names.h"
#include "treadle/core/link/channels.h"
#include "treadle/core/link/connection.h"
#include "treadle/core/link/handshake.h"

namespace treadle::cluster {

struct MembershipOptions {
  // Heartbeats go five times in that time where nothing else is sent, and the silence is measured as often: a peer is
  // given up after 1 to 1.2 times as long, or up to 1.4 where a pulse in shared memory stands for them.
  Duration heartbeatTimeout = std::chrono::seconds(5);
  link::ConnectionOptions connection;
  size_t lendLimitBytes = 0;  // of connection.pool's blocks that a peer may hold at a time; 0: no memory is shared
  bool lanes = false;         // large buffers may have sockets of their own
  bool open = false;          // workers join and leave at run time
  int servers = 0;            // the number of summation servers, which have the highest ranks
};

class MessageHandler {
 public:
  virtual ~MessageHandler() = default;
  // `from` is the connection the message came on, for an answer on the same socket.
  virtual void onMessage(int rank, const std::shared_ptr<link::Connection>& from, link::Message message) = 0;
  // None can be sent to `rank` any more, and none comes but what a thread is reading at this moment. Once for each
  // lost rank. When a worker leaves because the job is over, only the handler of kRpc is called. In an open job also
  // for a worker that has left, or that had gone before this worker came.
  virtual void onLost(int rank, const Status& why) = 0;
};

class Membership {
 public:
  // `worldSize`: of an open job, as many ranks as were given out so far; none of them is there.
  Membership(io::Reactor& reactor, WorkerInfo self, int worldSize, MembershipOptions options);
  ~Membership();

  // Before the first connection is attached. The handler must outlive `close`.
  void setHandler(link::Subject subject, MessageHandler& handler);

  // kServing: the peer dialed. The peer's name comes from the handshake. FailedPrecondition when there is one already.
  Status attach(const WorkerInfo& peer, io::Stream stream, link::Connection::Kind kind);

  // A socket that a peer dialed for large buffers: those of its requests or of its answers. FailedPrecondition when the
  // connection it belongs to is not there.
  Status attachLane(int rank, io::Stream stream, link::Purpose purpose);
  // How this worker dials one. Before the first connection is attached; on the thread that sends.
  using DialLane = std::function<Result<io::Stream>(int rank, link::Purpose purpose, TimePoint deadline)>;
  void setLaneDialer(DialLane dial) { dialLane_ = std::move(dial); }

  // Open jobs: a worker comes, and its connections are taken from now on; ranks below that nobody heard of never were.
  void expect(const WorkerInfo& worker);
  bool coming(int rank) const;  // expected, and neither here nor lost
  // It has joined, and is found by its name. Of this worker itself too.
  void welcome(int rank);
  // The ranks that never were or had gone before this worker came are lost to it from now on.
  void loseUnexpected();
  // Returns when this worker and all that are expected are connected in both directions; why one of them is not, or
  // DeadlineExceeded naming them.
  Status awaitConnected(TimePoint deadline);
  // Returns when a worker of this name has joined, another one than `former`. DeadlineExceeded.
  Result<WorkerInfo> awaitName(std::string_view name, TimePoint deadline, std::optional<int> former = {});

  // Heartbeats and the watch for silent peers begin; every peer is attached.
  void startWatch();

  const WorkerInfo& self() const { return self_; }
  bool open() const { return options_.open; }
  // Ranks are below; of an open job, those that were given out so far.
  int worldSize() const { return worldSize_.load(); }
  bool isServer(int rank) const { return options_.servers > 0 && rank >= worldSize() - options_.servers; }
  // The job goes on, and may end well, when this worker is lost; then it is lost to all. Else each speaks for itself.
  bool canGoOnWithout(int rank) const { return open() || isServer(rank); }
  // All of a job of a fixed size; of an open one `present`.
  std::vector<int> ranks() const;
  std::vector<int> present() const;  // ranks that have joined and are not lost, this one too
  std::vector<int> living() const;   // likewise, and those that are coming
  // Ranks below worldSize() that are not among the living. It never falls.
  uint64_t gone() const;
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

  // How a worker was lost, once it is.
  struct Loss {
    Status why;    // what all who needed it are told
    Status cause;  // the same without its name
    bool left;     // it went because it was done
    bool told;     // it said itself that it goes
  };
  std::optional<Loss> lossOf(int rank) const;

  // OK while nobody but servers is lost; then the first loss, which is the cause of those that follow, as a rule.
  Status firstLoss() const;
  // Rank `from` reports `failure`. If it is the loss of a third worker, this one may not have noticed that yet, and may
  // end over the report before it does: `firstLoss` names the lost worker from now on.
  void noteReported(int from, const Status& failure);

  // Nothing when it was lost before.
  void lose(int rank, const Status& cause);
  // The others have given this worker up: all of them are lost to it.
  void loseAll(const Status& why);

  // The job is over: from now on a peer that goes is not lost, but pending calls to it still end.
  void finish() { finished_.store(true); }

  // Says farewell to all and closes; bounded by the deadline. `reason` is why this worker leaves while others may need
  // it, and empty when the job is over.
  void close(const std::string& reason, TimePoint deadline);

 private:
  class Member;

  Member& member(int rank) const;
  Status noWorkerCalled(std::string_view name) const;
  void changed();
  void endCallsTo(int rank, const Status& why);
  bool closed() const;
  void tick();
  std::optional<uint64_t> beat();
  void scheduleTick();

  io::Reactor& reactor_;
  const WorkerInfo self_;
  const MembershipOptions options_;
  std::array<MessageHandler*, link::kSubjects> handlers_{};
  DialLane dialLane_;
  mutable base::GrowingTable<Member> members_;  // by rank
  Names names_;
  std::atomic<int> worldSize_;
  std::atomic<bool> finished_ = false;

  mutable Mutex mutex_;
  CondVar changed_;  // somebody was attached, welcomed or lost
  Status firstLoss_ TREADLE_GUARDED_BY(mutex_);
  bool closed_ TREADLE_GUARDED_BY(mutex_) = false;
  std::optional<io::Reactor::TimerId> timer_ TREADLE_GUARDED_BY(mutex_);
  TimePoint lastTick_{}, forgivenUntil_{};  // reactor's thread
  std::shared_ptr<memory::Block> pulse_;    // likewise; null where no memory is shared
};

}  // namespace treadle::cluster

#include "treadle/core/cluster/membership.h"

#include "treadle/core/base/log.h"

namespace treadle::cluster {
namespace {

// A heartbeat may come late or a tick go missing on a busy machine without a living peer being given up.
constexpr int kTicksPerLimit = 5;  // heartbeats within `lostAfter`

}  // namespace

// One member: its two connections, and why it is lost once it is.
class Membership::Peer final : public link::ConnectionSink {
 public:
  Peer(Membership& owner, int rank)
      : owner_(owner),
        rank_(rank),
        memory_(std::make_shared<link::PeerMemory>(
            owner.options_.lendLimitBytes > 0 ? owner.options_.connection.pool : nullptr,
            owner.options_.lendLimitBytes)) {
    info_.rank = rank;
  }

  void onMessage(link::Connection& from, link::Message message) override {
    MessageHandler* handler = owner_.handlers_[static_cast<size_t>(message.subject)];
    if (handler != nullptr) handler->onMessage(rank_, from.shared_from_this(), std::move(message));
  }
  void onLeave(link::Connection&, std::string reason) override {
    MutexLock lock(mutex_);
    farewell_ = std::move(reason);
  }
  void onClosed(link::Connection&, const Status& why) override { owner_.lose(rank_, why); }
  // What a container forbids is as it should be; what was to work and does not, or cannot be true, is worth a look.
  void onRefusal(link::Connection&, const Status& why) override {
    bool expected = why.code() == Code::kFailedPrecondition || why.code() == Code::kCancelled;
    LogLevel level = expected ? LogLevel::kInfo : LogLevel::kWarn;
    logLine(level, owner_.self_.name, link::describe(info()) + ": " + why.message() + ": tensors take another way");
  }
  Result<io::Fd> dialLane(link::Connection& from, TimePoint deadline) override {
    bool calls = from.kind() == link::Connection::Kind::kCalls;
    if (!owner_.dialLane_ || !owner_.options_.lanes) return failedPrecondition("this worker dials no lanes");
    return owner_.dialLane_(rank_, calls ? link::Purpose::kRequestLane : link::Purpose::kAnswerLane, deadline);
  }

  Status attachLane(io::Fd fd, link::Purpose purpose) {
    std::shared_ptr<link::Connection> connection;
    {
      MutexLock lock(mutex_);
      // What the peer asks comes on the connection that serves it; what it answers, on the one that this worker dialed.
      connection = purpose == link::Purpose::kRequestLane ? serving_ : calls_;
    }
    if (!connection) return failedPrecondition("rank " + std::to_string(rank_) + " has no connection for a lane");
    return connection->addLane(std::move(fd));
  }

  // Starts the connection in its place, which must be free: one that is refused is never read from.
  Status attach(const WorkerInfo& info, io::Fd fd, link::Connection::Kind kind) {
    MutexLock lock(mutex_);
    if (!lost_.ok()) return lost_;
    auto& place = kind == link::Connection::Kind::kCalls ? calls_ : serving_;
    if (place) return failedPrecondition("rank " + std::to_string(rank_) + " is connected already");
    if (!info_.name.empty() && info_.name != info.name)
      return failedPrecondition("rank " + std::to_string(rank_) + " has two names, '" + info_.name + "' and '" +
                                info.name + "'");
    auto connection =
        link::Connection::start(owner_.reactor_, std::move(fd), kind, owner_.options_.connection, *this, memory_);
    if (!connection.ok()) return std::move(connection).status();
    info_ = info;
    place = std::move(*connection);
    return {};
  }

  WorkerInfo info() const {
    MutexLock lock(mutex_);
    return info_;
  }

  Result<std::shared_ptr<link::Connection>> outgoing() const {
    MutexLock lock(mutex_);
    if (!lost_.ok()) return lost_;
    if (!calls_) return failedPrecondition("rank " + std::to_string(rank_) + " is not connected");
    return calls_;
  }

  // Marks it lost; the status to tell everybody, or nothing when it was lost already or left a job that is over.
  std::optional<Status> lose(const Status& why) {
    MutexLock lock(mutex_);
    if (!lost_.ok()) return std::nullopt;
    std::string text = link::describe(info_);
    bool jobIsOver = farewell_ && farewell_->empty();
    if (jobIsOver) {
      text += " has left: the job is over";
    } else {
      text += farewell_ ? " left the job: " + *farewell_ : " was lost: " + why.message();
    }
    lost_ = peerLost(info_.name, std::move(text));
    return jobIsOver ? std::nullopt : std::optional(lost_);
  }

  std::vector<std::shared_ptr<link::Connection>> connections() const {
    MutexLock lock(mutex_);
    std::vector<std::shared_ptr<link::Connection>> both;
    for (const auto& connection : {calls_, serving_, oldCalls_.lock(), oldServing_.lock()})
      if (connection) both.push_back(connection);
    return both;
  }

  // Of a lost peer, when they are closed: their sockets, and what had come of a message, go with who uses them last.
  void letGo() {
    std::shared_ptr<link::Connection> calls, serving;
    MutexLock lock(mutex_);
    oldCalls_ = calls_;
    oldServing_ = serving_;
    calls.swap(calls_);
    serving.swap(serving_);
    lock.unlock();
  }

  // Sends a heartbeat if nothing else was sent and `pulse` does not serve; how long nothing was heard of the peer.
  Duration tick(TimePoint now, std::optional<uint64_t> pulse) {
    std::shared_ptr<link::Connection> calls, serving;
    {
      MutexLock lock(mutex_);
      if (!lost_.ok() || !calls_ || !serving_) return Duration::zero();
      calls = calls_;
      serving = serving_;
    }
    if (!calls->sentSinceLastAsked()) calls->sendHeartbeat(pulse);
    if (std::optional<uint64_t> beats = memory_->pulse(); beats != lastBeats_) {
      lastBeats_ = beats;
      lastBeat_ = now;
    }
    return now - std::max({serving->lastHeard(), calls->lastHeard(), lastBeat_});
  }

 private:
  Membership& owner_;
  const int rank_;
  const std::shared_ptr<link::PeerMemory> memory_;
  mutable Mutex mutex_;
  WorkerInfo info_ TREADLE_GUARDED_BY(mutex_);
  std::shared_ptr<link::Connection> calls_ TREADLE_GUARDED_BY(mutex_), serving_ TREADLE_GUARDED_BY(mutex_);
  std::weak_ptr<link::Connection> oldCalls_ TREADLE_GUARDED_BY(mutex_), oldServing_ TREADLE_GUARDED_BY(mutex_);
  std::optional<std::string> farewell_ TREADLE_GUARDED_BY(mutex_);
  Status lost_ TREADLE_GUARDED_BY(mutex_);
  std::optional<uint64_t> lastBeats_;  // of the peer's pulse; reactor's thread
  TimePoint lastBeat_{};               // likewise: when it had changed
};

Membership::Membership(io::Reactor& reactor, WorkerInfo self, int worldSize, MembershipOptions options)
    : reactor_(reactor), self_(std::move(self)), options_(options) {
  for (int rank = 0; rank < worldSize; ++rank) members_.push_back(std::make_unique<Peer>(*this, rank));
}

Membership::~Membership() { close("it ended without a word", Clock::now()); }

void Membership::setHandler(link::Subject subject, MessageHandler& handler) {
  handlers_[static_cast<size_t>(subject)] = &handler;
}

Status Membership::attach(const WorkerInfo& peer, io::Fd fd, link::Connection::Kind kind) {
  if (peer.rank < 0 || peer.rank >= worldSize())
    return invalidArgument("rank " + std::to_string(peer.rank) + " is not in a job of " + std::to_string(worldSize()) +
                           " workers");
  return members_[static_cast<size_t>(peer.rank)]->attach(peer, std::move(fd), kind);
}

Status Membership::attachLane(int rank, io::Fd fd, link::Purpose purpose) {
  TREADLE_RETURN_IF_ERROR(checkRank(rank));
  if (!options_.lanes) return failedPrecondition("this worker was told to use no lanes");
  return members_[static_cast<size_t>(rank)]->attachLane(std::move(fd), purpose);
}

WorkerInfo Membership::info(int rank) const { return members_[static_cast<size_t>(rank)]->info(); }

Result<int> Membership::rankOf(std::string_view name) const {
  std::string known;
  for (const auto& member : members_) {
    WorkerInfo info = member->info();
    if (info.name == name) return info.rank;
    known += (known.empty() ? "" : ", ") + info.name;
  }
  return notFound("no worker is called '" + std::string(name) + "'; there are: " + known);
}

Status Membership::checkRank(int rank) const {
  if (rank >= 0 && rank < worldSize()) return {};
  return notFound("there is no rank " + std::to_string(rank) + " in a job of " + std::to_string(worldSize()) +
                  " workers");
}

Result<std::shared_ptr<link::Connection>> Membership::outgoing(int rank) const {
  TREADLE_RETURN_IF_ERROR(checkRank(rank));
  return members_[static_cast<size_t>(rank)]->outgoing();
}

Status Membership::send(int rank, link::Subject subject, Bytes payload, std::span<const Buffer> buffers,
                        link::SendMode mode, TimePoint deadline) {
  auto connection = outgoing(rank);
  if (!connection.ok()) return std::move(connection).status();
  return (*connection)->send(subject, payload, buffers, mode, deadline);
}

namespace {

ChannelUse used(const Status& status, uint64_t sentBytes) { return {status.ok(), status.message(), sentBytes}; }

}  // namespace

Result<PeerChannels> Membership::channels(int rank) const {
  auto calls = outgoing(rank);
  if (!calls.ok()) return std::move(calls).status();
  auto both = members_[static_cast<size_t>(rank)]->connections();
  auto sent = [&](wire::Place place) {
    uint64_t bytes = 0;
    for (const auto& connection : both) bytes += connection->sentBytes(place);
    return bytes;
  };
  PeerChannels channels;
  ChannelUse& socket = (*calls)->overUnix() ? channels.unixSockets : channels.tcp;
  socket = {true, {}, sent(wire::Place::kInline)};
  channels.lanes = used((*calls)->lanes(), sent(wire::Place::kOnLanes));
  channels.lanes.inUse = channels.lanes.inUse || channels.lanes.sentBytes > 0;  // lanes of answers alone
  if (channels.lanes.inUse) channels.lanes.why.clear();
  channels.sharedMemory = used((*calls)->sharing(), sent(wire::Place::kLent) + sent(wire::Place::kReturned));
  channels.crossMemory = used((*calls)->offering(), sent(wire::Place::kOffered));
  return channels;
}

Status Membership::firstLoss() const {
  MutexLock lock(mutex_);
  return firstLoss_;
}

// Whoever notices first, of the two sockets and the watch, tells everybody; what comes after is a
// consequence. The log line is written here and nowhere else.
void Membership::lose(int rank, const Status& why) {
  if (finished_.load()) return;
  Peer& member = *members_[static_cast<size_t>(rank)];
  std::optional<Status> told = member.lose(why);
  if (!told) return;
  {
    MutexLock lock(mutex_);
    if (closed_) return;
    if (firstLoss_.ok()) firstLoss_ = *told;
  }
  logWarn(self_.name, told->message());
  for (const auto& connection : member.connections()) connection->close(*told);
  member.letGo();
  for (MessageHandler* handler : handlers_)
    if (handler != nullptr) handler->onLost(rank, *told);
}

void Membership::startWatch() {
  memory::BlockPool* pool = options_.connection.pool;
  if (pool != nullptr && options_.lendLimitBytes > 0 && pool->arena().shareable())
    pulse_ = pool->allocate(sizeof(uint64_t));
  lastTick_ = Clock::now();
  // The connections may be old, and nobody has sent heartbeats on them so far.
  forgivenUntil_ = lastTick_ + options_.lostAfter;
  scheduleTick();
}

// At multiples of the interval since the clock's beginning, the same for all workers of a host: a heartbeat finds its
// receiver awake as a rule, and they disturb a computation of all once rather than each by itself (Petrini et al., "The
// Case of the Missing Supercomputer Performance", SC 2003).
void Membership::scheduleTick() {
  const Duration interval = options_.lostAfter / kTicksPerLimit;
  MutexLock lock(mutex_);
  if (closed_) return;
  const TimePoint due{(Clock::now().time_since_epoch() / interval + 1) * interval};
  timer_ = reactor_.at(due, [this] { tick(); });
}

// For the peers that map this process's memory: nobody is woken to hear that another lives. Its place.
std::optional<uint64_t> Membership::beat() {
  if (!pulse_) return std::nullopt;
  std::atomic_ref(*reinterpret_cast<uint64_t*>(pulse_->data())).fetch_add(1, std::memory_order_relaxed);
  return pulse_->offset();
}

// Heartbeats go on the connection that this worker dialed, and so arrive on one that the peer's reactor
// always reads, whatever its threads wait for.
void Membership::tick() {
  TimePoint now = Clock::now();
  Duration interval = options_.lostAfter / kTicksPerLimit;
  // This process did not run for a while: what its peers sent may still be unread. They get the time again.
  if (now - lastTick_ > 2 * interval) forgivenUntil_ = now + options_.lostAfter;
  lastTick_ = now;
  std::optional<uint64_t> pulse = beat();
  for (int rank = 0; rank < worldSize(); ++rank) {
    if (rank == self_.rank) continue;
    Duration silent = members_[static_cast<size_t>(rank)]->tick(now, pulse);
    if (silent > options_.lostAfter && now > forgivenUntil_)
      lose(rank, deadlineExceeded("nothing was heard of it for " + toText(silent)));
  }
  scheduleTick();
}

// All are told before the first connection closes: a peer that saw one close without a word would take it for
// a crash.
void Membership::close(const std::string& reason, TimePoint deadline) {
  {
    MutexLock lock(mutex_);
    if (closed_) return;
    closed_ = true;
    if (timer_) reactor_.cancel(*timer_);
  }
  std::vector<std::shared_ptr<link::Connection>> connections;
  for (const auto& member : members_)
    for (auto& connection : member->connections()) connections.push_back(std::move(connection));
  for (const auto& connection : connections) connection->leave(reason, deadline);
  for (const auto& connection : connections) connection->close(cancelled("this worker has left the job"));
  for (const auto& connection : connections) connection->awaitReader();
}

}  // namespace treadle::cluster

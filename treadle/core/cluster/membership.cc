#include "treadle/core/cluster/membership.h"

#include <numeric>

#include "treadle/core/base/log.h"
#include "treadle/core/cluster/cluster_messages.h"
#include "treadle/core/cluster/member.h"

namespace treadle::cluster {
namespace {

// A heartbeat may come late or a tick go missing on a busy machine without a living peer being given up.
constexpr int kTicksPerLimit = 5;  // heartbeats within `heartbeatTimeout`

ChannelUse used(const Status& status, uint64_t sentBytes) { return {status.ok(), status.message(), sentBytes}; }

}  // namespace

Membership::Membership(io::Reactor& reactor, WorkerInfo self, int worldSize, MembershipOptions options)
    : reactor_(reactor),
      self_(std::move(self)),
      options_(options),
      members_([this](size_t rank) { return std::make_unique<Member>(*this, static_cast<int>(rank)); }),
      worldSize_(worldSize) {
  if (open()) expect(self_);
}

Membership::~Membership() { close("it ended without a word", Clock::now()); }

Membership::Member& Membership::member(int rank) const { return members_[static_cast<size_t>(rank)]; }

void Membership::setHandler(link::Subject subject, MessageHandler& handler) {
  handlers_[static_cast<size_t>(subject)] = &handler;
}

Status Membership::attach(const WorkerInfo& peer, io::Stream stream, link::Connection::Kind kind) {
  if (peer.rank < 0 || peer.rank >= worldSize())
    return invalidArgument("rank " + std::to_string(peer.rank) + " is not in a job of " + std::to_string(worldSize()) +
                           " workers");
  TREADLE_RETURN_IF_ERROR(member(peer.rank).attach(peer, std::move(stream), kind));
  MutexLock lock(mutex_);
  changed_.notifyAll();
  if (!closed_) return {};
  lock.unlock();
  for (const auto& connection : member(peer.rank).connections()) connection->close(cancelled("this worker has left"));
  return cancelled("this worker has left its job");
}

Status Membership::attachLane(int rank, io::Stream stream, link::Purpose purpose) {
  TREADLE_RETURN_IF_ERROR(checkRank(rank));
  if (!options_.lanes) return failedPrecondition("this worker was told to use no lanes");
  return member(rank).attachLane(std::move(stream), purpose);
}

void Membership::changed() {
  MutexLock lock(mutex_);
  changed_.notifyAll();
}

void Membership::expect(const WorkerInfo& worker) {
  member(worker.rank).expect(worker.name);
  MutexLock lock(mutex_);
  worldSize_.store(std::max(worldSize(), worker.rank + 1));
}

bool Membership::coming(int rank) const { return rank < worldSize() && member(rank).living() && !member(rank).here(); }

void Membership::welcome(int rank) {
  member(rank).welcome();
  changed();
}

void Membership::loseUnexpected() {
  for (int rank = 0; rank < worldSize(); ++rank)
    if (!member(rank).living()) lose(rank, failedPrecondition("it had gone before this worker came"));
}

Status Membership::awaitConnected(TimePoint deadline) {
  MutexLock lock(mutex_);
  for (;;) {
    std::string missing;
    for (int rank : living()) {
      Result<bool> connected = member(rank).connected();
      if (connected.ok() && !*connected) missing += (missing.empty() ? "" : ", ") + member(rank).info().name;
    }
    if (missing.empty()) return {};
    if (!changed_.waitUntil(lock, deadline) && Clock::now() >= deadline)
      return deadlineExceeded("these workers did not connect to this one in time: " + missing +
                              "; `treadle doctor` shows which ways lead there");
  }
}

Result<WorkerInfo> Membership::awaitName(std::string_view name, TimePoint deadline, std::optional<int> former) {
  MutexLock lock(mutex_);
  for (;;) {
    Result<int> known = rankOf(name);
    if (known.ok() && (!open() || (member(*known).here() && *known != former))) return info(*known);
    if (!open()) return std::move(known).status();
    if (closed_) return cancelled("this worker has left its job");
    if (!changed_.waitUntil(lock, deadline) && Clock::now() >= deadline)
      return deadlineExceeded("no worker called '" + std::string(name) +
                              "' has joined in time: start one, or wait longer");
  }
}

std::vector<int> Membership::ranks() const {
  if (open()) return present();
  std::vector<int> all(static_cast<size_t>(worldSize()));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

std::vector<int> Membership::present() const {
  std::vector<int> ranks;
  for (int rank = 0; rank < worldSize(); ++rank)
    if (member(rank).here()) ranks.push_back(rank);
  return ranks;
}

std::vector<int> Membership::living() const {
  std::vector<int> ranks;
  for (int rank = 0; rank < worldSize(); ++rank)
    if (member(rank).living()) ranks.push_back(rank);
  return ranks;
}

uint64_t Membership::gone() const {
  uint64_t gone = 0;
  for (int rank = 0; rank < worldSize(); ++rank) gone += member(rank).living() ? 0 : 1;
  return gone;
}

WorkerInfo Membership::info(int rank) const { return member(rank).info(); }

// A name may have been had before by a worker that is gone: the one that has it now, else the last that had it. The
// last of that name comes first, as those before it are gone, though that may not be noted yet.
Result<int> Membership::rankOf(std::string_view name) const {
  std::optional<int> gone;
  const std::optional<int> found = names_.find(name, [&](int rank) {
    if (!open() || member(rank).here()) return true;
    if (!gone && !member(rank).living()) gone = rank;
    return false;
  });
  if (found) return *found;
  if (gone) return *gone;
  return noWorkerCalled(name);
}

Status Membership::noWorkerCalled(std::string_view name) const {
  std::string known;
  for (int rank = 0; rank < worldSize(); ++rank)
    if (member(rank).here() || !open()) known += (known.empty() ? "" : ", ") + info(rank).name;
  return notFound("no worker is called '" + std::string(name) + "'; there are: " + known);
}

Status Membership::checkRank(int rank) const {
  if (rank >= 0 && rank < worldSize()) return {};
  return notFound("there is no rank " + std::to_string(rank) + " in a job of " + std::to_string(worldSize()) +
                  " workers");
}

Result<std::shared_ptr<link::Connection>> Membership::outgoing(int rank) const {
  TREADLE_RETURN_IF_ERROR(checkRank(rank));
  return member(rank).outgoing();
}

Status Membership::send(int rank, link::Subject subject, Bytes payload, std::span<const Buffer> buffers,
                        link::SendMode mode, TimePoint deadline) {
  auto connection = outgoing(rank);
  if (!connection.ok()) return std::move(connection).status();
  return (*connection)->send(subject, payload, buffers, mode, deadline);
}

Result<PeerChannels> Membership::channels(int rank) const {
  auto calls = outgoing(rank);
  if (!calls.ok()) return std::move(calls).status();
  auto both = member(rank).connections();
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

std::optional<Membership::Loss> Membership::lossOf(int rank) const { return member(rank).loss(); }

Status Membership::firstLoss() const {
  MutexLock lock(mutex_);
  return firstLoss_;
}

void Membership::noteReported(int from, const Status& failure) {
  if (failure.code() != Code::kPeerLost || failure.worker() == self_.name || failure.worker() == info(from).name)
    return;
  // A function may throw what it likes. The job goes on without a server.
  if (!names_.find(failure.worker(), [this](int rank) { return !isServer(rank); })) return;
  MutexLock lock(mutex_);
  if (firstLoss_.ok()) firstLoss_ = failure;
}

// The first that notices, a socket or the watch, reports to all handlers; what comes after is a consequence. Before the
// watch begins this worker joins, and a loss may be a consequence of another: it is logged later, if the worker joins.
void Membership::lose(int rank, const Status& cause) {
  if (finished_.load() && closed()) return;  // this worker has left at the job's end: nobody is lost to it
  Member& lost = member(rank);
  const bool knew = lost.living();
  std::optional<Loss> loss = lost.lose(cause);
  if (!loss) return;
  const bool over = finished_.load() || (loss->left && !open());
  bool watches = false;
  {
    MutexLock lock(mutex_);
    changed_.notifyAll();
    if (closed_) return;
    watches = timer_.has_value();
    if (firstLoss_.ok() && knew && !loss->left && !over && !isServer(rank)) firstLoss_ = loss->why;
  }
  if (over) return endCallsTo(rank, loss->why);
  if (watches) lost.logLoss();
  auto connections = lost.connections();
  // A peer that was stopped, or cut off for a while, learns from this that it is out, whichever connection it reads
  // first.
  for (const auto& connection : connections)
    if (!loss->told)
      connection->send(link::Subject::kCluster, encodeOut(rank, loss->cause), {}, link::SendMode::kUrgent, kNever)
          .ignore();  // most are dead
  for (const auto& connection : connections) connection->close(loss->why);
  lost.letGo();
  for (MessageHandler* handler : handlers_)
    if (handler != nullptr) handler->onLost(rank, loss->why);
}

// When the job is over no worker counts as lost, but a worker whose shutdown timed out may still have pending calls.
void Membership::endCallsTo(int rank, const Status& why) {
  if (MessageHandler* calls = handlers_[static_cast<size_t>(link::Subject::kRpc)]; calls != nullptr)
    calls->onLost(rank, why);
}

bool Membership::closed() const {
  MutexLock lock(mutex_);
  return closed_;
}

void Membership::loseAll(const Status& why) {
  for (int rank : living())
    if (rank != self_.rank) lose(rank, why);
}

void Membership::startWatch() {
  memory::BlockPool* pool = options_.connection.pool;
  if (pool != nullptr && options_.lendLimitBytes > 0 && pool->arena().shareable())
    pulse_ = pool->allocate(sizeof(uint64_t));
  lastTick_ = Clock::now();
  // The connections may be old, and nobody has sent heartbeats on them so far.
  forgivenUntil_ = lastTick_ + options_.heartbeatTimeout;
  scheduleTick();
  for (int rank = 0; rank < worldSize(); ++rank) member(rank).logLoss();
}

// At multiples of the interval since the clock's beginning, the same for all workers of a host: a heartbeat finds its
// receiver awake as a rule, and they disturb a computation of all once rather than each by itself (Petrini et al., "The
// Case of the Missing Supercomputer Performance", SC 2003).
void Membership::scheduleTick() {
  const Duration interval = options_.heartbeatTimeout / kTicksPerLimit;
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
  Duration interval = options_.heartbeatTimeout / kTicksPerLimit;
  // This process did not run for a while: what its peers sent may still be unread. They get the time again.
  if (now - lastTick_ > 2 * interval) forgivenUntil_ = now + options_.heartbeatTimeout;
  lastTick_ = now;
  std::optional<uint64_t> pulse = beat();
  for (int rank : living()) {
    if (rank == self_.rank) continue;
    Duration silent = member(rank).tick(now, pulse);
    if (silent > options_.heartbeatTimeout && now > forgivenUntil_)
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
    changed_.notifyAll();
    if (timer_) reactor_.cancel(*timer_);
  }
  std::vector<std::shared_ptr<link::Connection>> connections;
  for (int rank = 0; rank < worldSize(); ++rank)
    for (auto& connection : member(rank).connections()) connections.push_back(std::move(connection));
  for (const auto& connection : connections) connection->leave(reason, deadline);
  for (const auto& connection : connections) connection->close(cancelled("this worker has left the job"));
  for (const auto& connection : connections) connection->awaitReader();
}

}  // namespace treadle::cluster

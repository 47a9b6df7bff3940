#include "treadle/core/cluster/member.h"

#include "treadle/core/base/log.h"

namespace treadle::cluster {

Membership::Member::Member(Membership& owner, int rank)
    : owner_(owner),
      rank_(rank),
      memory_(std::make_shared<link::PeerMemory>(
          owner.options_.lendLimitBytes > 0 ? owner.options_.connection.pool : nullptr, owner.options_.lendLimitBytes)),
      here_(!owner.open()),
      expected_(!owner.open()) {
  info_.rank = rank;
}

void Membership::Member::onMessage(link::Connection& from, link::Message message) {
  MessageHandler* handler = owner_.handlers_[static_cast<size_t>(message.subject)];
  if (handler != nullptr) handler->onMessage(rank_, from.shared_from_this(), std::move(message));
}

void Membership::Member::onLeave(link::Connection&, std::string reason) {
  MutexLock lock(mutex_);
  farewell_ = std::move(reason);
}

// One that leaves says so on both connections: what it said last may still be unread on the other.
void Membership::Member::onClosed(link::Connection& connection, const Status& why) {
  {
    MutexLock lock(mutex_);
    const bool first = !std::exchange(oneEnded_, true);
    if (first && farewell_ && farewell_->empty() && calls_ && serving_ && lost_.ok() &&
        (&connection == calls_.get() || &connection == serving_.get()))
      return;
  }
  owner_.lose(rank_, why);
}

void Membership::Member::onClosing(link::Connection&, const Status& why) {
  MutexLock lock(mutex_);
  if (closing_.ok()) closing_ = why;
}

// What a container forbids is as it should be; what was to work and does not, or cannot be true, is worth a look.
void Membership::Member::onRefusal(link::Connection&, const Status& why) {
  bool expected = why.code() == Code::kFailedPrecondition || why.code() == Code::kCancelled;
  LogLevel level = expected ? LogLevel::kInfo : LogLevel::kWarn;
  logLine(level, owner_.self_.name, link::describe(info()) + ": " + why.message() + ": tensors take another way");
}

Result<io::Stream> Membership::Member::dialLane(link::Connection& from, TimePoint deadline) {
  bool calls = from.kind() == link::Connection::Kind::kCalls;
  if (!owner_.dialLane_ || !owner_.options_.lanes) return failedPrecondition("this worker dials no lanes");
  return owner_.dialLane_(rank_, calls ? link::Purpose::kRequestLane : link::Purpose::kAnswerLane, deadline);
}

void Membership::Member::expect(const std::string& name) {
  MutexLock lock(mutex_);
  setInfo({.name = name, .rank = rank_});
  expected_ = true;
}

void Membership::Member::setInfo(const WorkerInfo& info) {
  if (info_.name.empty()) owner_.names_.add(info.name, rank_);
  info_ = info;
}

void Membership::Member::welcome() {
  MutexLock lock(mutex_);
  here_ = lost_.ok();
}

Status Membership::Member::attachLane(io::Stream stream, link::Purpose purpose) {
  std::shared_ptr<link::Connection> connection;
  {
    MutexLock lock(mutex_);
    // What the peer asks comes on the connection that serves it; what it answers, on the one that this worker dialed.
    connection = purpose == link::Purpose::kRequestLane ? serving_ : calls_;
  }
  if (!connection) return failedPrecondition(link::describe(info()) + " has no connection for a lane");
  return connection->addLane(std::move(stream));
}

Status Membership::Member::attach(const WorkerInfo& info, io::Stream stream, link::Connection::Kind kind) {
  MutexLock lock(mutex_);
  if (!lost_.ok()) return lost_;
  if (!expected_) return failedPrecondition(link::describe(info) + " was not announced to this worker");
  auto& place = kind == link::Connection::Kind::kCalls ? calls_ : serving_;
  if (place) return failedPrecondition("rank " + std::to_string(info.rank) + " is connected already");
  if (!info_.name.empty() && info_.name != info.name)
    return failedPrecondition("rank " + std::to_string(info.rank) + " has two names, '" + info_.name + "' and '" +
                              info.name + "'");
  auto connection =
      link::Connection::start(owner_.reactor_, std::move(stream), kind, owner_.options_.connection, *this, memory_);
  if (!connection.ok()) return std::move(connection).status();
  setInfo(info);
  place = std::move(*connection);
  return {};
}

WorkerInfo Membership::Member::info() const {
  MutexLock lock(mutex_);
  return info_;
}

bool Membership::Member::living() const {
  MutexLock lock(mutex_);
  return expected_ && lost_.ok();
}

Result<bool> Membership::Member::connected() const {
  MutexLock lock(mutex_);
  if (!lost_.ok()) return lost_;
  return calls_ != nullptr && serving_ != nullptr;
}

Result<std::shared_ptr<link::Connection>> Membership::Member::outgoing() const {
  MutexLock lock(mutex_);
  if (!lost_.ok()) return lost_;
  if (!calls_) return failedPrecondition("rank " + std::to_string(rank_) + " is not connected");
  return calls_;
}

std::optional<Membership::Loss> Membership::Member::lose(const Status& cause) {
  {
    MutexLock lock(mutex_);
    if (!lost_.ok()) return std::nullopt;
    cause_ = closing_.ok() ? cause : closing_;
    std::string text = link::describe(info_);
    if (!farewell_) {
      text += " was lost: " + cause_.message();
    } else if (!farewell_->empty()) {
      text += " left the job: " + *farewell_;
    } else {
      text += owner_.open() ? " has left the job" : " has left: the job is over";
    }
    // Who came later does not know the names of those that had gone.
    const std::string name = info_.name.empty() ? "rank " + std::to_string(rank_) : info_.name;
    lost_ = peerLost(name, std::move(text));
    here_ = false;
    const bool jobIsOver = farewell_ && farewell_->empty() && !owner_.open();
    unlogged_ = expected_ && !jobIsOver;
  }
  return loss();
}

void Membership::Member::logLoss() {
  {
    MutexLock lock(mutex_);
    if (!std::exchange(unlogged_, false)) return;
  }
  const std::optional<Loss> lost = loss();  // after the look: a loss may come between the two
  logLine(lost->left ? LogLevel::kInfo : LogLevel::kWarn, owner_.self_.name, lost->why.message());
}

std::optional<Membership::Loss> Membership::Member::loss() const {
  MutexLock lock(mutex_);
  if (lost_.ok()) return std::nullopt;
  return Loss{lost_, cause_, farewell_ && farewell_->empty(), farewell_.has_value()};
}

std::vector<std::shared_ptr<link::Connection>> Membership::Member::connections() const {
  MutexLock lock(mutex_);
  std::vector<std::shared_ptr<link::Connection>> both;
  for (const auto& connection : {calls_, serving_, oldCalls_.lock(), oldServing_.lock()})
    if (connection) both.push_back(connection);
  return both;
}

void Membership::Member::letGo() {
  std::shared_ptr<link::Connection> calls, serving;
  MutexLock lock(mutex_);
  oldCalls_ = calls_;
  oldServing_ = serving_;
  calls.swap(calls_);
  serving.swap(serving_);
  lock.unlock();
}

Duration Membership::Member::tick(TimePoint now, std::optional<uint64_t> pulse) {
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

}  // namespace treadle::cluster

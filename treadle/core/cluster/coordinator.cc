#include "treadle/core/cluster/coordinator.h"

#include <algorithm>

#include "treadle/core/base/log.h"
#include "treadle/core/io/executor.h"
#include "treadle/core/wire/reader.h"
#include "treadle/core/wire/writer.h"

namespace treadle::cluster {
namespace {

// How long nothing must have been done before a worker in its shutdown says so: a call that comes every now and then
// should not cost a message to rank 0 each.
constexpr Duration kQuiet = std::chrono::milliseconds(10);

}  // namespace

Coordinator::Coordinator(Membership& membership, io::Reactor& reactor, std::function<WorkCount()> work)
    : membership_(membership),
      reactor_(reactor),
      work_(std::move(work)),
      entered_(static_cast<size_t>(membership.worldSize())),
      vote_(membership.worldSize()) {}

// Every message has all the fields, 26 bytes, so that there is one layout to read.
void Coordinator::tell(int rank, Kind kind, uint64_t round, const WorkCount& count) {
  wire::Writer writer;
  writer.number(static_cast<uint8_t>(kind));
  writer.number(round);
  writer.number(count.sent);
  writer.number(count.handled);
  writer.number(static_cast<uint8_t>(count.idle));
  // A failure means that the peer is lost, which ends every wait here by itself.
  membership_.send(rank, link::Subject::kCluster, writer.bytes(), {}, link::SendMode::kUrgent, kNever).ignore();
}

void Coordinator::tellAll(Kind kind, uint64_t round) {
  for (int rank = 0; rank < membership_.worldSize(); ++rank) tell(rank, kind, round);
}

Status Coordinator::waitFor(MutexLock& lock, const std::function<bool()>& done, TimePoint deadline,
                            std::string_view what) {
  while (!done()) {
    if (!lost_.ok()) return lost_.withContext(what);
    if (!changed_.waitUntil(lock, deadline) && !done())
      return deadlineExceeded(std::string(what) + " did not end in time: " + whatIsLeft());
  }
  return {};
}

Status Coordinator::barrier(TimePoint deadline) {
  io::Executor::Blocking blocking;
  TREADLE_RETURN_IF_ERROR(blocking.status());
  MutexLock lock(mutex_);
  uint64_t mine = ++barriersEntered_;
  lock.unlock();
  tell(0, Kind::kBarrierEnter, mine);
  lock.lock();
  return waitFor(lock, [&] { return barriersLeft_ >= mine; }, deadline, "the barrier");
}

Status Coordinator::shutdown(TimePoint deadline) {
  io::Executor::Blocking blocking;
  TREADLE_RETURN_IF_ERROR(blocking.status());
  inShutdown_.store(true);
  tellWork(Kind::kIdle, 0);
  MutexLock lock(mutex_);
  Status over = waitFor(lock, [&] { return over_; }, deadline, "the shutdown");
  // Given up: what this worker does next is not to be cut off by the others' shutdown.
  if (!over.ok()) inShutdown_.store(false);
  return over;
}

void Coordinator::workDone() {
  if (inShutdown_.load() && !waitsForQuiet_.exchange(true)) tellWhenQuiet(work_());
}

// Who ends the last call meanwhile relies on this look, so the mark is taken down before it.
void Coordinator::tellWhenQuiet(const WorkCount& seen) {
  reactor_.at(Clock::now() + kQuiet, [this, seen] {
    waitsForQuiet_.store(false);
    WorkCount now = work_();
    if (!now.idle) return;  // the end of that work comes here again
    if (now == seen) return tellWork(Kind::kIdle, 0);
    workDone();
  });
}

// Counting and sending are one step: rank 0 takes what comes later for newer.
void Coordinator::tellWork(Kind kind, uint64_t round) {
  MutexLock lock(tellWorkMutex_);
  WorkCount now = work_();
  now.idle = now.idle && inShutdown_.load();
  if (now.idle || kind == Kind::kProbeAnswer) tell(0, kind, round, now);
}

std::string Coordinator::whatIsLeft() const {
  if (membership_.self().rank != 0) return "other workers are not done, or calls are under way";
  std::string names;
  for (int rank : vote_.waitingFor()) names += (names.empty() ? "" : ", ") + membership_.info(rank).name;
  return names.empty() ? "calls are under way" : "these workers are not in their shutdown or not done: " + names;
}

// Only when the slowest worker moves can a barrier be complete; the number tells all barriers up to it at
// once.
void Coordinator::enterBarrier(int rank) {
  ++entered_[static_cast<size_t>(rank)];
  uint64_t all = *std::min_element(entered_.begin(), entered_.end());
  if (entered_[static_cast<size_t>(rank)] == all) tellAll(Kind::kBarrierLeave, all);
}

void Coordinator::act(ShutdownVote::Action action) {
  if (action == ShutdownVote::Action::kProbe) tellAll(Kind::kProbe, vote_.round());
  if (action == ShutdownVote::Action::kFinish) tellAll(Kind::kFinish, 0);
}

void Coordinator::onMessage(int rank, const std::shared_ptr<link::Connection>& from, link::Message message) {
  wire::Reader reader(message.payload);
  auto kind = static_cast<Kind>(reader.number<uint8_t>());
  auto round = reader.number<uint64_t>();
  WorkCount count{reader.number<uint64_t>(), reader.number<uint64_t>(), reader.boolean()};
  bool toCoordinator = kind == Kind::kBarrierEnter || kind == Kind::kIdle || kind == Kind::kProbeAnswer;
  Status bad = reader.finished("a message of the cluster");
  if (!bad.ok() || (toCoordinator ? membership_.self().rank != 0 : rank != 0))
    return from->close(dataLoss("it sent a cluster message that makes no sense"));
  if (kind == Kind::kProbe) return tellWork(Kind::kProbeAnswer, round);
  MutexLock lock(mutex_);
  switch (kind) {
    case Kind::kBarrierEnter: return enterBarrier(rank);
    case Kind::kIdle: return act(vote_.report(rank, count));
    case Kind::kProbeAnswer: return act(vote_.answer(rank, round, count));
    case Kind::kBarrierLeave: barriersLeft_ = round; break;
    case Kind::kFinish:
      membership_.finish();
      over_ = true;
      break;
    default: logWarn(membership_.self().name, "an unknown cluster message was ignored");
  }
  changed_.notifyAll();
}

void Coordinator::onLost(int, const Status& why) { close(why); }

void Coordinator::close(const Status& why) {
  MutexLock lock(mutex_);
  if (lost_.ok()) lost_ = why;
  changed_.notifyAll();
}

}  // namespace treadle::cluster

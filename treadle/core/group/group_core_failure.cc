// How operations and groups end before their time: deadlines, cancelling, lost members, the end of the worker.

#include <algorithm>

#include "treadle/core/base/check.h"
#include "treadle/core/group/fusion.h"
#include "treadle/core/group/group_core.h"
#include "treadle/core/io/serving.h"

namespace treadle::group {

void GroupCore::onLost(int jobRank, const Status& why) {
  if (link_.memberOf(jobRank) >= 0) abandon(why.withContext(text()));
}

void GroupCore::abandon(const Status& why) {
  const base::Gate::Use inside(gate_);
  if (!inside || !fail(why)) return;
  // Also when it was heard from one of them: not all may have been told. Who is lost needs no word.
  link_.sendToOthers(abortMessage(kWholeGroup, why)).ignore();
  end_.fail(why);  // last: what ends with the group may report it to the others too
}

Status GroupCore::failure() {
  MutexLock lock(mutex_);
  return failure_;
}

void GroupCore::close(const Status& why) {
  if (fail(why)) end_.fail(why);
  TREADLE_CHECK(failedOperations().empty() || !io::Serving::here(),
                "a thread that polls or reads must not close a group, for that waits");
  io::Executor::Blocking blocking;
  awaitUsers();  // one of them may be the one that makes the streams fail
  for (const auto& operation : failedOperations()) operation->inbox().waitForTurnToEnd();
  std::shared_ptr<Fusion> names;
  {
    MutexLock lock(mutex_);
    names = fusion_;
  }
  if (names) names->waitForTurnToEnd();
}

void GroupCore::awaitUsers() {
  gate_.close();
  Streams streams;
  {
    MutexLock lock(mutex_);
    streams = streams_;
  }
  for (const auto& [key, stream] : streams) stream->awaitUsers();
}

std::vector<std::shared_ptr<Operation>> GroupCore::failedOperations() {
  std::vector<std::shared_ptr<Operation>> all;
  Streams streams;
  {
    MutexLock lock(mutex_);
    all = failed_;
    streams = streams_;
  }
  for (const auto& [key, stream] : streams) {
    const auto ofStream = stream->failedOperations();
    all.insert(all.end(), ofStream.begin(), ofStream.end());
  }
  return all;
}

bool GroupCore::fail(const Status& why) {
  std::vector<std::shared_ptr<Operation>> own;
  Streams streams;
  std::shared_ptr<Fusion> names;
  {
    MutexLock lock(mutex_);
    if (!failure_.ok()) return false;
    failure_ = why;
    for (auto& [sequence, entry] : entries_)
      if (entry.operation && !entry.ended) own.push_back(std::move(entry.operation));
    failed_ = own;
    entries_.clear();
    streams = streams_;
    names = fusion_;
    large_.clear();
    if (timerDue_ != kNever) shared_.reactor.cancel(timer_);
    timerDue_ = kNever;
  }
  // First, so that tensors end with this reason and not with the failure of a sum that follows from it.
  if (names) names->fail(why);
  for (const auto& operation : own) {
    Event event;
    event.kind = Event::Kind::kFail;
    event.status = why;
    deliver(operation, std::move(event));
  }
  for (const auto& [key, stream] : streams) stream->fail(why);
  return true;
}

// The caller gets its memory back: waits until no thread handles an event of the operation. A thread that polls or
// reads must not wait: there the thread that has the turn handles this event next, which makes the future ready. Waits
// also where Blocking refuses because too many handlers wait: a turn ends after a computation and needs no message.
void GroupCore::cancel(const std::shared_ptr<Operation>& operation) {
  Event event;
  event.kind = Event::Kind::kFail;
  event.status = cancelled(link_.nameOf(link_.self()) + " cancelled operation " +
                           std::to_string(operation->sequence()) + " of " + text());
  event.failedBy = FailedBy::kThisWorker;
  if (const base::Gate::Use inside(gate_); inside) deliver(operation, std::move(event));
  if (io::Serving::here()) return;
  io::Executor::Blocking blocking;
  operation->inbox().waitForTurnToEnd();
}

// One timer for the group, at the earliest deadline of all. It is left running when that operation ends: operations
// come by the thousand, and the next one's deadline is later.
void GroupCore::watch(TimePoint due) {
  if (due >= timerDue_) return;
  if (timerDue_ != kNever) shared_.reactor.cancel(timer_);
  timerDue_ = due;
  timer_ = shared_.reactor.at(due, [weak = weak_from_this()] {
    if (auto self = weak.lock()) self->onTimer();
  });
}

void GroupCore::onTimer() {
  Todo todo;
  {
    MutexLock lock(mutex_);
    timerDue_ = kNever;
    TimePoint now = Clock::now(), earliest = kNever;
    for (auto& [sequence, entry] : entries_) {
      if (!entry.operation || entry.ended) continue;
      if (entry.operation->due() > now) {
        earliest = std::min(earliest, entry.operation->due());
        continue;
      }
      Event event;
      event.kind = Event::Kind::kDeadline;
      todo.deliveries.push_back({entry.operation, std::move(event)});
    }
    watch(earliest);
  }
  carryOut(std::move(todo));
}

void GroupCore::ask(const Operation& operation, const std::set<int>& members) {
  Message ask;
  ask.sequence = operation.sequence();
  ask.kind = MessageKind::kAsk;
  for (int member : members) link_.send(member, ask).ignore();  // a loss fails the group by itself
  shared_.reactor.at(Clock::now() + kAnswerTime, [weak = weak_from_this(), sequence = operation.sequence()] {
    if (auto self = weak.lock()) self->onAnswersDue(sequence);
  });
}

void GroupCore::onAnswersDue(uint64_t sequence) {
  Todo todo;
  {
    MutexLock lock(mutex_);
    const auto found = entries_.find(sequence);
    if (found == entries_.end() || found->second.ended) return;
    Event event;
    event.kind = Event::Kind::kAnswersDue;
    todo.deliveries.push_back({found->second.operation, std::move(event)});
  }
  carryOut(std::move(todo));
}

}  // namespace treadle::group

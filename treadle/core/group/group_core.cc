#include "treadle/core/group/group_core.h"

#include <algorithm>
#include <cfenv>
#include <cstring>
#include <utility>

#include "treadle/core/group/all_to_all_v_operation.h"
#include "treadle/core/group/binomial_tree.h"
#include "treadle/core/group/fusion.h"
#include "treadle/core/group/plan_operation.h"
#include "treadle/core/group/sparse_operation.h"
#include "treadle/core/group/sparse_tree_operation.h"
#include "treadle/core/group/wide_staging.h"

namespace treadle::group {
namespace {

Event failEvent(Status why, FailedBy failedBy) {
  Event event;
  event.kind = Event::Kind::kFail;
  event.status = std::move(why);
  event.failedBy = failedBy;
  return event;
}

Event eventOf(Event::Kind kind) {
  Event event;
  event.kind = kind;
  return event;
}

Event messageEvent(int member, Message message) {
  Event event;
  event.kind = Event::Kind::kMessage;
  event.member = member;
  event.message = std::move(message);
  return event;
}

// These end an operation, or say why it ends: they need not wait for what has come before.
bool goesFirst(const Event& event) {
  const bool isAnswer = event.kind == Event::Kind::kMessage && event.message.kind == MessageKind::kAnswer;
  return event.kind == Event::Kind::kFail || event.kind == Event::Kind::kDeadline || isAnswer ||
         event.kind == Event::Kind::kAnswersDue;
}

// The default floating-point environment, for as long as it lives. A thread may have been told to take subnormal
// numbers for 0 (at::set_flush_denormal): what it adds would differ from what another member, or another thread here,
// adds.
class DefaultEnvironment {
 public:
  DefaultEnvironment() {
    std::fegetenv(&saved_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~DefaultEnvironment() { std::fesetenv(&saved_); }
  DefaultEnvironment(const DefaultEnvironment&) = delete;
  DefaultEnvironment& operator=(const DefaultEnvironment&) = delete;

 private:
  std::fenv_t saved_;
};

Stream seenByReceiver(Stream stream) { return stream == Stream::kSends ? Stream::kReceives : Stream::kSends; }

}  // namespace

GroupCore::GroupCore(Shared shared, MemberLink link, GroupOptions options, std::string text, Surroundings surroundings)
    : shared_(std::move(shared)),
      pool_(&shared_.executor),
      link_(std::move(link)),
      options_(std::move(options)),
      text_(std::move(text)),
      surroundings_(std::move(surroundings)) {}

Future<void> GroupCore::readyFuture(Status status) {
  Promise<void> promise;
  Future<void> future = promise.future();
  if (status.ok()) {
    promise.set();
  } else {
    promise.fail(std::move(status));
  }
  return future;
}

std::shared_ptr<Operation> GroupCore::makeOperation(uint64_t sequence, Call call, Plan plan, Duration timeout) {
  const Agreement::Kind agreement = agreementOf(call.description, link_.size());
  Operation::Setup setup{
      .host = *this,
      .link = link_,
      .group = text(),
      .sequence = sequence,
      .description = std::move(call.description),
      .agreement = agreement,
      .input = call.input,
      .output = call.output,
      .timeout = timeout,
  };
  std::shared_ptr<Operation> operation;
  if (call.sparse && agreement == Agreement::Kind::kTree) {
    operation = std::make_shared<SparseTreeOperation>(std::move(setup), std::move(*call.sparse));
  } else if (call.sparse) {
    operation = std::make_shared<SparseOperation>(std::move(setup), std::move(*call.sparse));
  } else if (setup.description.operation == OperationKind::kAllToAllV) {
    operation = std::make_shared<AllToAllVOperation>(std::move(setup), std::move(plan));
  } else {
    if (setup.description.movedType() != setup.description.dataType)
      call.staging = std::make_shared<WideStaging>(setup.description.dataType, call.input, call.output,
                                                   std::move(call.staging), link_.nameOf(link_.self()));
    operation = std::make_shared<PlanOperation>(std::move(setup), std::move(plan), std::move(call.staging));
  }
  operation->state()->executor = pool_;
  operation->state()->endsByItself = true;
  operation->state()->cancelHook = [weak = weak_from_this(), weakOperation = std::weak_ptr(operation)] {
    auto self = weak.lock();
    auto cancelledOne = weakOperation.lock();
    if (self && cancelledOne) self->cancel(cancelledOne);
  };
  return operation;
}

Result<Algorithm> GroupCore::choose(Algorithm wanted, const Description& what) const {
  return group::choose({.algorithm = wanted, .sumOrder = options_.sumOrder}, what, surroundings_);
}

Future<void> GroupCore::start(Call call, Duration timeout) {
  const base::Gate::Use inside(gate_);
  if (!inside) return readyFuture(failure());
  call.description.smallBytes = options_.smallBytes;
  call.description.chunkBytes = options_.chunkBytes;
  if (link_.size() > 1)
    call.description.algorithm = valueOrThrow(choose(call.wanted.value_or(options_.algorithm), call.description));
  // Of one member each operation is a copy.
  if (link_.size() == 1 && !call.output.empty() && call.output.data() != call.input.data())
    std::memcpy(call.output.data(), call.input.data(), call.output.size());
  Plan plan = link_.size() > 1 ? planOf(call, surroundings_.placement, link_.self()) : Plan();
  std::shared_ptr<Operation> operation;
  Turn turn = Turn::kNone;
  {
    MutexLock lock(mutex_);
    if (!failure_.ok() || link_.size() == 1) return readyFuture(failure_);
    Entry& entry = entryOf(next_);
    entry.urgency = call.description.urgency;
    operation = makeOperation(next_, std::move(call), std::move(plan), timeout);
    entry.operation = operation;
    ++next_;
    Todo todo;  // for the new operation alone: what could be done for others has been
    if (!entry.failure.ok()) {
      todo.deliveries.push_back({operation, failEvent(entry.failure, FailedBy::kPeer)});
    } else {
      advance(todo);
      for (auto& [member, message] : entry.early)
        todo.deliveries.push_back({operation, messageEvent(member, std::move(message))});
    }
    entry.early.clear();
    watch(operation->due());
    // Before the lock is let go, for what came early must be in front of what may come now.
    for (Todo::Delivery& delivery : todo.deliveries)
      if (Turn got = push(*operation, std::move(delivery.event)); got != Turn::kNone) turn = got;
  }
  use(turn, operation);
  return Future<void>(operation->state());
}

Future<void> GroupCore::startWith(int peer, Stream stream, Call call, Duration timeout) {
  const base::Gate::Use inside(gate_);
  if (!inside) return readyFuture(failure());
  std::shared_ptr<GroupCore> pair;
  {
    MutexLock lock(mutex_);
    if (!failure_.ok()) return readyFuture(failure_);
    pair = pairWith(peer, stream);
  }
  return pair->start(std::move(call), timeout);
}

std::shared_ptr<GroupCore> GroupCore::pairWith(int peer, Stream stream) {
  std::shared_ptr<GroupCore>& pair = streams_[{peer, stream}];
  if (!pair) {
    MemberLink link = link_.between(peer, stream);
    std::string text = "the sends from " + link.member(0).name + " to " + link.member(1).name + " in " + text_;
    Surroundings two{surroundings_.placement.pair(link_.self(), peer), surroundings_.costs};
    pair = std::make_shared<GroupCore>(shared_, std::move(link), options_, std::move(text), std::move(two));
  }
  return pair;
}

Status GroupCore::onMessage(int jobRank, Message message) {
  int member = link_.memberOf(jobRank);
  if (member < 0) return dataLoss("it sent a message for " + text() + ", of which it is no member");
  if (message.kind == MessageKind::kAbort && message.sequence == kWholeGroup) return abandon(message.status), Status();
  Todo todo;
  Status violation;
  std::shared_ptr<GroupCore> pair;
  std::shared_ptr<Fusion> names;
  {
    MutexLock lock(mutex_);
    if (!failure_.ok()) {
      // It may not know yet: the group may have failed before it made it.
      if (message.kind == MessageKind::kStart || message.kind == MessageKind::kAsk ||
          message.kind == MessageKind::kOffers)
        todo.sendings.push_back({member, abortMessage(kWholeGroup, failure_)});
    } else if (isOfNames(message.kind)) {
      names = fusion();
    } else if (message.stream == Stream::kFused) {
      message.stream = Stream::kAll;
      pair = batches();
    } else if (message.stream != Stream::kAll) {
      pair = pairWith(member, seenByReceiver(std::exchange(message.stream, Stream::kAll)));
    } else {
      violation = route(member, std::move(message), todo);
      advance(todo);
    }
  }
  if (names) return names->onMessage(member, std::move(message));
  if (pair) return pair->onMessage(jobRank, std::move(message));
  carryOut(std::move(todo));
  return violation;
}

Status GroupCore::route(int member, Message message, Todo& todo) {
  uint64_t sequence = message.sequence;
  if (message.kind == MessageKind::kAsk) {
    todo.sendings.push_back({member, answerMessage(sequence, sequence < nextBegin_)});
    return {};
  }
  if (sequence >= next_ + kAhead) return dataLoss("it is too far ahead in " + text());
  auto found = entries_.find(sequence);
  if (found == entries_.end() && sequence < next_) {  // it is over here
    if (message.kind == MessageKind::kAbort) answerAbort(member, sequence, todo);
    return {};
  }
  bool opens = message.kind == MessageKind::kStart || message.kind == MessageKind::kAbort;
  if (!opens && (found == entries_.end() || !found->second.operation))
    return dataLoss("it sent data of an operation of " + text() + " that this worker has not begun");
  Entry& entry = entryOf(sequence);
  if (message.kind == MessageKind::kStart) return routeStart(member, entry, std::move(message), todo);
  if (message.kind == MessageKind::kAbort) {
    routeAbort(member, entry, message, todo);
    return {};
  }
  if (message.kind == MessageKind::kAnswer && message.begun) hear(member, entry);
  if (entry.ended) return {};
  if (!entry.operation->admit(member, message))
    return dataLoss("it sent more of an operation of " + text() + " than members send at a time");
  todo.deliveries.push_back({entry.operation, messageEvent(member, std::move(message))});
  return {};
}

Status GroupCore::routeStart(int member, Entry& entry, Message message, Todo& todo) {
  auto seen = entry.startSeen.begin() + member;
  if (*seen) return dataLoss("it started an operation of " + text() + " twice");
  *seen = true;
  hear(member, entry);
  if (entry.urgency > 0 && entry.begun && isAgreed(entry)) mayMoveOthers_ = true;
  if (!entry.operation) {
    entry.early.emplace_back(member, std::move(message));
  } else if (!entry.ended) {
    todo.deliveries.push_back({entry.operation, messageEvent(member, std::move(message))});
  } else if (entry.othersKnow && !entry.failure.ok()) {
    // It may have begun after everybody was told of the failure.
    todo.sendings.push_back({member, abortMessage(message.sequence, entry.failure)});
  }
  return {};
}

void GroupCore::routeAbort(int member, Entry& entry, const Message& message, Todo& todo) {
  hear(member, entry);
  if (entry.ended && entry.failure.ok()) return answerAbort(member, message.sequence, todo);
  if (entry.ended || std::ranges::count(entry.aborted, member) > 0) return;
  if (entry.operation) {
    entry.aborted.push_back(member);
    todo.deliveries.push_back({entry.operation, failEvent(message.status, FailedBy::kPeer)});
  } else if (entry.failure.ok()) {
    entry.failure = message.status;
    entry.early.clear();
  }
}

// Along a tree the sender may not have heard that this member has begun the operation, and this one has no failure to
// report.
void GroupCore::answerAbort(int member, uint64_t sequence, Todo& todo) const {
  if (link_.size() > kMostAllToAll) todo.sendings.push_back({member, answerMessage(sequence, true)});
}

GroupCore::Entry& GroupCore::entryOf(uint64_t sequence) {
  Entry& entry = entries_[sequence];
  if (entry.heard.empty()) {
    entry.heard.resize(static_cast<size_t>(link_.size()));
    entry.startSeen.resize(entry.heard.size());
  }
  return entry;
}

void GroupCore::hear(int member, Entry& entry) {
  auto heard = entry.heard.begin() + member;
  if (*heard) return;
  *heard = true;
  ++entry.heardCount;
}

// Drops what is over, and begins what may begin by Note [What is under way].
void GroupCore::advance(Todo& todo) {
  for (auto it = entries_.begin(); it != entries_.end();) {
    const Entry& entry = it->second;
    bool over = entry.ended && entry.begun && (entry.failure.ok() || entry.heardCount == link_.size());
    it = over ? entries_.erase(it) : std::next(it);
    if (!over) break;  // the oldest alone counts; those after it are dropped when it is gone
  }
  uint64_t oldest = entries_.empty() ? next_ : std::min(next_, entries_.begin()->first);
  for (; nextBegin_ < next_ && nextBegin_ < oldest + kAhead; ++nextBegin_) {
    Entry& entry = entries_.at(nextBegin_);
    entry.begun = true;
    if (entry.ended) {
      entry.othersKnow = true;
      todo.sendings.push_back({kAll, abortMessage(nextBegin_, entry.failure)});
      continue;
    }
    todo.deliveries.push_back({entry.operation, eventOf(Event::Kind::kBegin)});
    if (!entry.operation->large()) continue;
    large_.insert(nextBegin_);
    mayMoveOthers_ = true;
  }
  permit(todo);
}

// All members have begun it, as far as is known here.
bool GroupCore::isAgreed(const Entry& entry) const {
  const auto hasStarted = [&](int member) { return entry.startSeen[static_cast<size_t>(member)]; };
  const int self = link_.self();
  if (entry.operation->agreementKind() == Agreement::Kind::kAllToAll)
    return std::ranges::count(entry.startSeen, true) == link_.size() - 1;
  return self == 0 ? std::ranges::all_of(childrenOf(self, link_.size()), hasStarted) : hasStarted(parentOf(self));
}

// Those that go first move. Others that have moved stop.
void GroupCore::permit(Todo& todo) {
  if (!std::exchange(mayMoveOthers_, false)) return;
  std::vector<std::pair<uint32_t, Entry*>> order;
  for (uint64_t sequence : large_) {
    Entry& entry = entries_.at(sequence);
    order.emplace_back(entry.urgency > 0 && isAgreed(entry) ? entry.urgency : 0, &entry);
  }
  std::ranges::stable_sort(order, std::greater(), [](const auto& one) { return one.first; });
  for (size_t i = 0; i < order.size(); ++i) {
    Operation& operation = *order[i].second->operation;
    const bool moves = i < kMoving;
    if (operation.mayMove() == moves) continue;
    operation.setMayMove(moves);
    if (moves) todo.deliveries.push_back({order[i].second->operation, eventOf(Event::Kind::kPermit)});
  }
}

void GroupCore::onEnded(const Operation& operation, const Status& status, bool othersKnow, FailedBy failedBy) {
  Todo todo;
  {
    MutexLock lock(mutex_);
    auto found = entries_.find(operation.sequence());
    if (found == entries_.end()) return;  // the whole group has failed
    Entry& entry = found->second;
    entry.ended = true;
    entry.failure = status;
    if (large_.erase(operation.sequence()) > 0) mayMoveOthers_ = true;
    // Without a start from here others would wait for one; a failure that only this worker knows is told as well.
    bool tell = !status.ok() && (!othersKnow || failedBy == FailedBy::kThisWorker);
    entry.othersKnow = !tell || entry.begun;
    if (status.ok())
      for (int member : entry.aborted) answerAbort(member, operation.sequence(), todo);
    if (tell && entry.begun) todo.sendings.push_back({kAll, abortMessage(operation.sequence(), status)});
    advance(todo);
  }
  carryOut(std::move(todo));
}

void GroupCore::carryOut(Todo todo) {
  for (auto& [member, message] : todo.sendings) {
    // A member that cannot be reached is lost, which fails the group by itself.
    (member == kAll ? link_.sendToOthers(std::move(message)) : link_.send(member, std::move(message))).ignore();
  }
  for (Todo::Delivery& delivery : todo.deliveries) deliver(delivery.operation, std::move(delivery.event));
}

Message GroupCore::abortMessage(uint64_t sequence, Status status) {
  Message message;
  message.sequence = sequence;
  message.kind = MessageKind::kAbort;
  message.status = std::move(status);
  return message;
}

void GroupCore::deliver(const std::shared_ptr<Operation>& operation, Event event) {
  use(push(*operation, std::move(event)), operation);
}

Turn GroupCore::push(Operation& operation, Event event) {
  if (goesFirst(event)) return operation.inbox().pushFirst(std::move(event));
  bool mayPost = operation.large() && event.kind != Event::Kind::kBegin;
  return operation.inbox().push(std::move(event), mayPost);
}

void GroupCore::use(Turn turn, const std::shared_ptr<Operation>& operation) {
  if (turn == Turn::kRun) run(operation, false);
  if (turn == Turn::kPost) post(operation);
}

void GroupCore::run(const std::shared_ptr<Operation>& operation, bool inTask) {
  const DefaultEnvironment environment;
  Turn turn = Turn::kRun;
  while (std::optional<Event> event = operation->inbox().next(inTask, turn)) operation->handle(std::move(*event));
  if (turn == Turn::kPost) post(operation);
}

void GroupCore::post(const std::shared_ptr<Operation>& operation) {
  pool_.post([self = shared_from_this(), operation] {
    if (operation->inbox().takePosted()) self->run(operation, true);
  });
}

}  // namespace treadle::group

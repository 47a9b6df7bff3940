#include "treadle/core/group/operation.h"

namespace treadle::group {

Operation::Operation(Setup setup)
    : setup_(std::move(setup)),
      due_(deadlineAfter(setup_.timeout)),
      started_(static_cast<size_t>(setup_.link.size()), false) {
  started_[static_cast<size_t>(setup_.link.self())] = true;
}

// Whoever dropped it before it ended (a pool that was stopped) must not leave its future pending.
Operation::~Operation() { state_->complete(cancelled("this worker has left the job")); }

void Operation::handle(Event event) {
  if (ended_) return;
  switch (event.kind) {
    case Event::Kind::kBegin: begun_ = true; return onBegin();
    case Event::Kind::kPermit: return onPermit();
    case Event::Kind::kMessage: return onMessage(event.member, std::move(event.message));
    case Event::Kind::kFail: return finish(std::move(event.status), event.failedBy);
    case Event::Kind::kDeadline: return onDeadline();
  }
}

void Operation::onMessage(int member, Message message) {
  if (message.kind == MessageKind::kStart) return onStart(member, std::move(message));
  // On a connection the start comes before all else, so that data only ever comes from who agrees on what it means.
  if (!started(member)) return violated(member, "data of an operation that it had not begun");
  if (message.kind == MessageKind::kChunk) return onChunk(member, message.position, std::move(message.data));
  onAck(member, message.position);
}

void Operation::onStart(int member, Message message) {
  if (started(member)) return violated(member, "the start of an operation twice");
  started_[static_cast<size_t>(member)] = true;
  ++startedCount_;
  if (message.description != description()) return finish(mismatch(member, message.description));
  if (message.elements != elementsFrom(member)) return finish(mismatch(member, message.elements));
  onStarted(member, std::move(message.data));
}

void Operation::sendStarts(std::span<const Buffer> data) {
  Message start = message(MessageKind::kStart);
  start.description = description();
  Status first;
  for (int step = 1; step < link().size(); ++step) {
    const int member = (link().self() + step) % link().size();
    start.elements = elementsTo(member);
    start.data = data[static_cast<size_t>(member)];
    Status sent = link().send(member, start);
    if (first.ok()) first = std::move(sent);
  }
  if (!first.ok()) finish(first.withContext(text()));
}

void Operation::finish(Status status, FailedBy failedBy) {
  if (ended_) return;
  ended_ = true;
  // The future before the host: what the host does next may begin other operations, whose continuations may cancel this
  // one.
  onFinished();
  state_->complete(status.ok() ? Result<io::Unit>(io::Unit{}) : Result<io::Unit>(status));
  setup_.host.onEnded(*this, status, begun_, failedBy);
}

void Operation::violated(int member, const std::string& what) {
  Status why = dataLoss("it sent " + what + ": " + text());
  link().closeConnection(member, why);
  finish(std::move(why).withWorker(link().member(member).name));
}

void Operation::onDeadline() {
  std::string missing;
  for (int rank = 0; rank < link().size(); ++rank)
    if (!started(rank)) missing += (missing.empty() ? "" : ", ") + link().nameOf(rank);
  const std::string reason = !begun_           ? "operations before it have not ended"
                             : missing.empty() ? waitsFor()
                                               : "it has not been started by " + missing;
  finish(deadlineExceeded(text() + " was not done in " + toText(setup_.timeout) + ": " + reason));
}

Status Operation::mismatch(int member, const Description& theirs) const {
  std::string mine = describe(description()), other = describe(theirs);
  if (mine == other && theirs.blocks != description().blocks) {
    other += " in blocks of other sizes";
  } else if (mine == other) {
    mine += " with " + describeOptions(description());
    other += " with " + describeOptions(theirs);
  }
  return invalidArgument("operation " + std::to_string(sequence()) + " of " + setup_.group +
                         " differs: " + link().nameOf(link().self()) + " calls " + mine + ", " + link().nameOf(member) +
                         " calls " + other + "; all members must call the same operations in the same order");
}

Status Operation::mismatch(int member, uint64_t elements) const {
  const std::string sender = link().nameOf(member), receiver = link().nameOf(link().self());
  return invalidArgument(text() + ": " + sender + " sends " + std::to_string(elements) + " elements to " + receiver +
                         ", which expects " + std::to_string(elementsFrom(member)));
}

Message Operation::message(MessageKind kind) const {
  Message message;
  message.sequence = sequence();
  message.kind = kind;
  return message;
}

std::string Operation::text() const {
  return describe(description()) + " (operation " + std::to_string(sequence()) + " of " + setup_.group + ")";
}

}  // namespace treadle::group

#include "treadle/core/group/operation.h"

#include "treadle/core/group/binomial_tree.h"

namespace treadle::group {
namespace {

// With room for the rest of a message in memory.
uint64_t unreadBytesOf(const Message& message) {
  return sizeof(Event) + message.data.sizeBytes + message.description.shape.size() + message.status.message().size();
}

// Twice the largest window, all that goes with results and shares, and a few hundred messages without data.
uint64_t mostUnreadBytes(const Description& description) {
  return 32 * description.chunkBytes + 2 * description.smallBytes + 512 * sizeof(Event);
}

}  // namespace

Operation::Operation(Setup setup)
    : setup_(std::move(setup)),
      due_(deadlineAfter(setup_.timeout)),
      unreadBytes_(static_cast<size_t>(setup_.link.size())),
      agreement_(setup_.agreement, setup_.link.size(), setup_.link.self()) {}

// Whoever dropped it before it ended (a pool that was stopped) must not leave its future pending.
Operation::~Operation() { state_->complete(cancelled("this worker has left the job")); }

bool Operation::admit(int member, const Message& message) {
  if (message.kind == MessageKind::kStart) return true;  // there is one of each member
  const uint64_t bytes = unreadBytesOf(message);
  return unreadBytes_[static_cast<size_t>(member)].fetch_add(bytes) + bytes <= mostUnreadBytes(description());
}

void Operation::handle(Event event) {
  if (ended_) return;
  switch (event.kind) {
    case Event::Kind::kBegin:
      begun_ = true;
      agreement_.begin();
      return onBegin();
    case Event::Kind::kPermit: return onPermit();
    case Event::Kind::kMessage:
      if (event.message.kind != MessageKind::kStart)
        unreadBytes_[static_cast<size_t>(event.member)] -= unreadBytesOf(event.message);
      return onMessage(event.member, std::move(event.message));
    case Event::Kind::kFail: return finish(std::move(event.status), event.failedBy);
    case Event::Kind::kDeadline: return onDeadline();
    case Event::Kind::kAnswersDue: return finishLate(answers());
  }
}

void Operation::onMessage(int member, Message message) {
  if (message.kind == MessageKind::kStart) return onStart(member, std::move(message));
  if (message.kind == MessageKind::kAnswer) return onAnswer(member, message.begun);
  // Data only comes from members that agree on its meaning.
  if (!agreement_.takesDataFrom(member)) return violated(member, "data of an operation that it had not begun");
  if (message.kind == MessageKind::kChunk) return onChunk(member, message.position, std::move(message.data));
  if (message.kind == MessageKind::kResult) return onResult(member, message.elements, std::move(message.data));
  if (message.kind == MessageKind::kShare) return onShare(member, message.elements, std::move(message.data));
  onAck(member, message.position);
}

void Operation::onStart(int member, Message message) {
  if (message.description != description()) return finish(mismatch(member, message.description));
  silent_.erase(member);
  notBegun_.erase(member);
  if (!agreement_.hear(member)) return violated(member, "the start of an operation where none was due");
  onStarted(member, message.elements, std::move(message.data));
}

void Operation::onResult(int member, uint64_t, Buffer) { violated(member, "a result where none was due"); }

void Operation::onShare(int member, uint64_t, Buffer) { violated(member, "a share where none was due"); }

bool Operation::isParent(int member) const { return member == parentOf(link().self()); }

void Operation::sendStarts() {
  const std::vector<int> members = agreement_.due();
  if (members.empty()) return;  // as a rule, after each chunk
  Message start = message(MessageKind::kStart);
  start.description = description();
  Status first;
  for (int member : members) {
    start.elements = elementsTo(member);
    start.data = dataWithStart(member);
    Status sent = link().send(member, start);
    if (first.ok()) first = std::move(sent);
  }
  if (!first.ok()) finish(first.withContext(text()));
}

void Operation::send(int member, Message message) {
  if (Status sent = link().send(member, std::move(message)); !sent.ok()) finish(sent.withContext(text()));
}

void Operation::finish(Status status, FailedBy failedBy) {
  if (ended_) return;
  ended_ = true;
  // The future before the host: what the host does next may begin other operations, whose continuations may cancel this
  // one.
  onFinished();
  state_->complete(status.ok() ? Result<io::Unit>(io::Unit{}) : Result<io::Unit>(status));
  const bool othersKnow = begun_ && agreement_.kind() == Agreement::Kind::kAllToAll;
  setup_.host.onEnded(*this, status, othersKnow, failedBy);
}

void Operation::violated(int member, const std::string& what) {
  Status why = dataLoss("it sent " + what + ": " + text());
  link().lose(member, why);
  finish(std::move(why).withWorker(link().member(member).name));
}

// Along the tree a member hears of few others, and asks the rest.
void Operation::onDeadline() {
  if (asked_) return;
  if (!begun_) return finishLate("operations before it have not ended");
  if (agreement_.agreed()) return finishLate(waitsFor());
  asked_ = true;
  for (int rank = 0; rank < link().size(); ++rank)
    if (rank != link().self() && !agreement_.heard(rank)) silent_.insert(rank);
  if (agreement_.kind() == Agreement::Kind::kTree) return setup_.host.ask(*this, silent_);
  notBegun_.swap(silent_);
  finishLate(answers());
}

void Operation::onAnswer(int member, bool begun) {
  if (silent_.erase(member) == 0) return;
  if (!begun) notBegun_.insert(member);
  if (silent_.empty()) finishLate(answers());
}

std::string Operation::answers() const {
  if (agreement_.agreed()) return waitsFor();
  if (silent_.empty() && notBegun_.empty()) {
    const std::vector<int> awaited = agreement_.awaited();
    return "all members have started it, but that has not come from " + namesOf({awaited.begin(), awaited.end()});
  }
  std::string text = notBegun_.empty() ? "" : "it has not been started by " + namesOf(notBegun_);
  if (silent_.empty()) return text;
  return text + (text.empty() ? "" : "; ") + "no answer has come from " + namesOf(silent_);
}

void Operation::finishLate(const std::string& why) {
  finish(deadlineExceeded(text() + " was not done in " + toText(setup_.timeout) + ": " + why));
}

std::string Operation::namesOf(const std::set<int>& members) const {
  std::string names;
  for (int rank : members) names += (names.empty() ? "" : ", ") + link().nameOf(rank);
  return names;
}

Status Operation::mismatch(int member, const Description& theirs) const {
  std::string mine = describe(description(), link().self()), other = describe(theirs, member);
  if (mine == other && theirs.count != description().count) {
    mine += " with " + std::to_string(description().count) + " elements";
    other += " with " + std::to_string(theirs.count);
  } else if (mine == other && theirs.blocks != description().blocks) {
    other += " in blocks of other sizes";
  } else if (mine == other) {
    mine += " with " + describeOptions(description());
    other += " with " + describeOptions(theirs);
  }
  const char* rule = description().operation == OperationKind::kSend
                         ? "the n-th send meets the n-th recv, which has the same size and shape"
                         : "all members must call the same operations in the same order";
  return invalidArgument("operation " + std::to_string(sequence()) + " of " + setup_.group +
                         " differs: " + link().nameOf(link().self()) + " calls " + mine + ", " + link().nameOf(member) +
                         " calls " + other + "; " + rule);
}

Status Operation::mismatch(int member, uint64_t sent, uint64_t expected) const {
  const std::string sender = link().nameOf(member), receiver = link().nameOf(link().self());
  return invalidArgument(text() + ": " + sender + " sends " + std::to_string(sent) + " elements to " + receiver +
                         ", which expects " + std::to_string(expected));
}

Message Operation::message(MessageKind kind) const {
  Message message;
  message.sequence = sequence();
  message.kind = kind;
  return message;
}

std::string Operation::text() const {
  return describe(description(), link().self()) + " (operation " + std::to_string(sequence()) + " of " + setup_.group +
         ")";
}

}  // namespace treadle::group

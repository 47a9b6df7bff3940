#pragma once
// One collective operation on this worker, from its call to its future. Events reach it through its inbox, so that it
// needs no lock of its own: whoever has the inbox's turn calls `handle`. While it has not ended it may write to the
// caller's memory; when its future is ready nobody touches that memory any more.
//
// Held by the group until it has ended here and all members have been heard of.

#include <atomic>
#include <memory>
#include <set>
#include <vector>

#include "treadle/core/group/agreement.h"
#include "treadle/core/group/inbox.h"
#include "treadle/core/group/member_link.h"
#include "treadle/core/io/future.h"

namespace treadle::group {

class Operation;

// Who told this worker that an operation has failed, for whoever does not know yet must be told.
enum class FailedBy { kThisWorker, kPeer, kGroup };

struct Event {
  enum class Kind {
    kBegin,    // its turn has come: start it with the others
    kPermit,   // it may send large data, as long as mayMove()
    kMessage,  // start, chunk, ack, answer, result or share of a member
    kFail,     // it has failed elsewhere, or the group has
    kDeadline,
    kAnswersDue,
  };
  Kind kind = Kind::kBegin;
  int member = -1;
  Message message;
  Status status;
  FailedBy failedBy = FailedBy::kGroup;
};

class OperationHost {
 public:
  virtual ~OperationHost() = default;
  // It is late: asks the members whether they have begun it. Their answers come as messages, and kAnswersDue after a
  // second.
  virtual void ask(const Operation& operation, const std::set<int>& members) = 0;
  // It touches the caller's memory no more. `othersKnow`: that it began here. Called once, by who has the turn.
  virtual void onEnded(const Operation& operation, const Status& status, bool othersKnow, FailedBy failedBy) = 0;
};

class Operation {
 public:
  using State = io::FutureState<io::Unit>;

  struct Setup {
    OperationHost& host;
    const MemberLink& link;
    std::string group;  // for messages: "group 'trainers'"
    uint64_t sequence;
    Description description;
    Agreement::Kind agreement;
    Bytes input;
    MutableBytes output;  // may be the input
    Duration timeout;
  };

  explicit Operation(Setup setup);
  virtual ~Operation();
  Operation(const Operation&) = delete;
  Operation& operator=(const Operation&) = delete;

  void handle(Event event);
  // Counts what comes from a member until it is handled. Windows bound that for members, and this for one that keeps to
  // none. False: it is more than members send at a time. Any thread.
  bool admit(int member, const Message& message);

  Inbox<Event>& inbox() { return inbox_; }
  const std::shared_ptr<State>& state() const { return state_; }
  uint64_t sequence() const { return setup_.sequence; }
  Agreement::Kind agreementKind() const { return setup_.agreement; }
  TimePoint due() const { return due_; }
  // Handling its data may take long, so that a task should.
  virtual bool large() const = 0;
  // Whether it may send large data now. The host sets it, on any thread; when it may, kPermit follows, and until that
  // is handled it may not yet.
  bool mayMove() const { return mayMove_; }
  void setMayMove(bool mayMove) { mayMove_ = mayMove; }

 protected:
  // All of these run in the inbox's turn, before the operation has ended.
  virtual void onBegin() = 0;
  virtual void onPermit() = 0;
  // `member` has begun the same operation, and sends this one so many elements.
  virtual void onStarted(int member, uint64_t elements, Buffer data) = 0;
  virtual void onChunk(int member, uint64_t position, Buffer data) = 0;
  // `member` has combined its part. Only a sparse all-reduce sends this; by default it is a violation.
  virtual void onResult(int member, uint64_t elements, Buffer data);
  // `member` sends what it has for this one, where starts have gone along the tree. As onResult.
  virtual void onShare(int member, uint64_t elements, Buffer data);
  virtual void onAck(int member, uint64_t positions) = 0;
  // It has ended, and frees what it kept. Called before the future is ready.
  virtual void onFinished() {}
  // What the start to a member has as `elements`: how many go there, unless the operation says otherwise.
  virtual uint64_t elementsTo(int member) const = 0;
  // What it waits for when all have begun.
  virtual std::string waitsFor() const = 0;

  // The data that travels with the start to a member; it may be borrowed.
  virtual Buffer dataWithStart(int member) = 0;

  // Sends the starts that are due, even when one cannot be reached.
  void sendStarts();
  void send(int member, Message message);
  void finish(Status status, FailedBy failedBy = FailedBy::kThisWorker);
  // A member sends another number of elements than this one expects.
  Status mismatch(int member, uint64_t sent, uint64_t expected) const;
  // A member does what no member does: it is cut off, which ends the group.
  void violated(int member, const std::string& what);

  // The member is this one's parent in the tree of starts.
  bool isParent(int member) const;
  bool ended() const { return ended_; }
  bool begun() const { return begun_; }
  const Agreement& agreement() const { return agreement_; }
  const MemberLink& link() const { return setup_.link; }
  const Description& description() const { return setup_.description; }
  Bytes input() const { return setup_.input; }
  MutableBytes output() const { return setup_.output; }
  Message message(MessageKind kind) const;
  std::string text() const;  // "allReduce (sum) of 170 float32 (operation 3 of group 'trainers')"

 private:
  void onMessage(int member, Message message);
  void onStart(int member, Message message);
  void onAnswer(int member, bool begun);
  void onDeadline();
  void finishLate(const std::string& why);
  std::string namesOf(const std::set<int>& members) const;
  // The reason for a late operation, as far as members have answered.
  std::string answers() const;
  Status mismatch(int member, const Description& theirs) const;

  const Setup setup_;
  const TimePoint due_;
  const std::shared_ptr<State> state_ = std::make_shared<State>();
  Inbox<Event> inbox_;
  std::atomic<bool> mayMove_ = false;
  std::vector<std::atomic<uint64_t>> unreadBytes_;  // by rank

  // Whoever has the turn.
  Agreement agreement_;
  bool begun_ = false, ended_ = false;
  std::set<int> silent_, notBegun_;  // once it has asked: those that have not answered, and not begun it
  bool asked_ = false;
};

}  // namespace treadle::group

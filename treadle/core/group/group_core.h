#pragma once
// One process group on this worker: gives operations their numbers, brings messages to them, and knows which members
// have been heard of which operation. Held by the service and by handles. Any thread may call anything; nothing waits.
//
// Note [What is under way]: nobody waits for room in a send queue, so the protocol bounds what can be in one.
// * A member sends its start of operation k only when all operations before k - kAhead are over: it has heard of them
//   from all members, or they ended well, which proves that all have begun them. So it is at most kAhead operations
//   ahead of anybody, and what comes early is small data only.
// * Large data goes only to a member that has begun the operation, a window of chunks at most before it acknowledges
//   some, and only for kMoving large operations that have not ended: those that are the most urgent of all on which the
//   members have agreed, and then the oldest. Of the most urgent one anywhere, all members will have heard that all
//   have begun it, and where there is none, the oldest is among the kMoving on every member that has begun it. So there
//   is always one that moves. Each that has to stop for a more urgent one has a window of chunks under way, and its
//   partial results in memory: kAhead of each at most.
// * A small result of a sparse all-reduce goes to each other member as soon as it is there, and so does a small share
//   where starts have gone along the tree: one of each for each operation that has begun, so kAhead at most.
// Later operations wait for their turn with their plans and the caller's memory; a sparse all-reduce with a packed copy
// of its rows. These bounds hold for each stream: that of all members, two with each other one, which are groups of
// two, and that of tensors that are matched by name. For those rank 0 and the others also exchange offers and orders: a
// member's next offers come when the last ones are answered, and orders are about open offers, of which a member has
// kMostOpenOffers at most.

#include <map>
#include <set>

#include "treadle/core/base/gate.h"
#include "treadle/core/group/choice.h"
#include "treadle/core/group/operation.h"
#include "treadle/core/group/options.h"
#include "treadle/core/io/reactor.h"

namespace treadle::group {

inline constexpr uint64_t kAhead = 64;
inline constexpr size_t kMoving = 2;
inline constexpr Duration kAnswerTime = std::chrono::seconds(1);  // for what others say about a late operation

class BatchMemory;
class Fusion;
struct OfferLimit;
struct Signature;

class GroupCore final : public OperationHost, public std::enable_shared_from_this<GroupCore> {
 public:
  // What the groups of a worker share.
  struct Shared {
    io::Reactor& reactor;
    io::Executor& executor;
    std::shared_ptr<BatchMemory> batchMemory;
  };

  // `text` stands for it in messages: "group 'trainers'".
  GroupCore(Shared shared, MemberLink link, GroupOptions options, std::string text, Surroundings surroundings);

  // The next operation of this group; the options in the call's description are filled in. A group of one, and one that
  // has failed, answers at once. Throws ArgumentError when GroupOptions::algorithm cannot do it.
  Future<void> start(Call call, Duration timeout);
  // The next operation of the stream between this member and `peer`. Each stream has numbers of its own and fails with
  // the group.
  Future<void> startWith(int peer, Stream stream, Call call, Duration timeout);
  // pushPull (group.h) of checked arguments.
  Future<void> offer(std::string name, Signature signature, void* data, OfferLimit limit);

  // From the job's rank `jobRank`; on the reading thread. DataLoss for what no member sends: cut the sender off.
  Status onMessage(int jobRank, Message message);
  void onLost(int jobRank, const Status& why);
  // The whole group fails here, and everywhere: the others are told.
  void abandon(const Status& why);
  // Why the whole group has failed; OK if it has not, as far as this worker knows.
  Status failure();
  // Fails when the whole group does, and is never ready otherwise.
  Future<void> ended() const { return end_.future(); }

  // All operations fail with `why`, the later ones too. Returns when no operation touches its memory any more. Waits,
  // so not on a thread that polls or reads.
  void close(const Status& why);

  const MemberLink& link() const { return link_; }
  const GroupOptions& options() const { return options_; }
  const Surroundings& surroundings() const { return surroundings_; }
  // choice.h, with this algorithm in place of that of the options.
  Result<Algorithm> choose(Algorithm wanted, const Description& what) const;
  const std::string& text() const { return text_; }

 private:
  // What is known of one operation.
  struct Entry {
    std::shared_ptr<Operation> operation;        // null until it is started here
    std::vector<std::pair<int, Message>> early;  // starts that came before
    std::vector<bool> startSeen, heard;          // by rank in the group; heard: that it has begun or failed
    int heardCount = 1;
    std::vector<int> aborted;  // by these, while it was under way here
    Status failure;            // why it failed, once it has
    uint32_t urgency = 0;      // of its description
    bool begun = false, ended = false;
    bool othersKnow = true;  // that it ended here, or that it began
  };
  // What is to be done when the lock is let go.
  struct Todo {
    struct Delivery {
      std::shared_ptr<Operation> operation;
      Event event;
    };
    struct Sending {
      int member;  // kAll: everybody
      Message message;
    };
    std::vector<Delivery> deliveries;
    std::vector<Sending> sendings;
  };
  using Entries = std::map<uint64_t, Entry>;
  // By peer and stream: a group of two, or of all, which holds the state of the stream.
  using Streams = std::map<std::pair<int, Stream>, std::shared_ptr<GroupCore>>;
  static constexpr int kAll = -1;

  void ask(const Operation& operation, const std::set<int>& members) override;
  void onEnded(const Operation& operation, const Status& status, bool othersKnow, FailedBy failedBy) override;

  std::shared_ptr<GroupCore> pairWith(int peer, Stream stream) TREADLE_REQUIRES(mutex_);
  std::shared_ptr<GroupCore> batches() TREADLE_REQUIRES(mutex_);
  const std::shared_ptr<Fusion>& fusion() TREADLE_REQUIRES(mutex_);
  Status route(int member, Message message, Todo& todo) TREADLE_REQUIRES(mutex_);
  Status routeStart(int member, Entry& entry, Message message, Todo& todo) TREADLE_REQUIRES(mutex_);
  void routeAbort(int member, Entry& entry, const Message& message, Todo& todo) TREADLE_REQUIRES(mutex_);
  void answerAbort(int member, uint64_t sequence, Todo& todo) const;
  Entry& entryOf(uint64_t sequence) TREADLE_REQUIRES(mutex_);
  void hear(int member, Entry& entry) TREADLE_REQUIRES(mutex_);
  void advance(Todo& todo) TREADLE_REQUIRES(mutex_);
  bool isAgreed(const Entry& entry) const TREADLE_REQUIRES(mutex_);
  void permit(Todo& todo) TREADLE_REQUIRES(mutex_);
  void watch(TimePoint due) TREADLE_REQUIRES(mutex_);
  void carryOut(Todo todo);
  void deliver(const std::shared_ptr<Operation>& operation, Event event);
  static Turn push(Operation& operation, Event event);
  void use(Turn turn, const std::shared_ptr<Operation>& operation);
  void run(const std::shared_ptr<Operation>& operation, bool inTask);
  void post(const std::shared_ptr<Operation>& operation);
  void cancel(const std::shared_ptr<Operation>& operation);
  void onTimer();
  void onAnswersDue(uint64_t sequence);
  // False when it had failed before.
  bool fail(const Status& why);
  // For `close`, after a failure: waits until nobody is in a function that sends.
  void awaitUsers();
  // Those that were under way when the group failed, with those of its streams.
  std::vector<std::shared_ptr<Operation>> failedOperations();
  std::shared_ptr<Operation> makeOperation(uint64_t sequence, Call call, Plan plan, Duration timeout);
  static Message abortMessage(uint64_t sequence, Status status);
  static Future<void> readyFuture(Status status);

  const Shared shared_;
  const io::ContinueOn pool_;  // also for who cancels when the worker has ended
  const MemberLink link_;
  const GroupOptions options_;
  const std::string text_;
  const Surroundings surroundings_;

  Promise<void> end_;
  base::Gate gate_;  // to what `link_` needs, for threads of the program

  Mutex mutex_;
  Status failure_ TREADLE_GUARDED_BY(mutex_);
  Entries entries_ TREADLE_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<Operation>> failed_ TREADLE_GUARDED_BY(mutex_);  // were under way then
  Streams streams_ TREADLE_GUARDED_BY(mutex_);
  std::shared_ptr<Fusion> fusion_ TREADLE_GUARDED_BY(mutex_);  // null before the first use
  uint64_t next_ TREADLE_GUARDED_BY(mutex_) = 0;               // to be started here
  uint64_t nextBegin_ TREADLE_GUARDED_BY(mutex_) = 0;          // to be told to the others
  std::set<uint64_t> large_ TREADLE_GUARDED_BY(mutex_);        // begun, not ended
  bool mayMoveOthers_ TREADLE_GUARDED_BY(mutex_) = false;      // of these, than those that move
  TimePoint timerDue_ TREADLE_GUARDED_BY(mutex_) = kNever;
  io::Reactor::TimerId timer_ TREADLE_GUARDED_BY(mutex_) = 0;
};

}  // namespace treadle::group

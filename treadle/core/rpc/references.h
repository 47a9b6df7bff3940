#pragma once
// Counts who holds references to which values (docs/protocol/references.md). A value lives at its owner, under a RefId
// made by whoever asked for it. Each worker that holds references to it has forks there, each with a ForkId made by
// whoever passed it on. Two guarantees:
//
//   1. The owner hears of every deleted fork: a fork that goes says so to the owner, again and again until that
//      acknowledges it. So a deletion may be lost, late, doubled, and come in any order.
//   2. No fork is deleted before the owner knows its children: a worker that passes a reference on keeps its own
//      fork until the receiver has said that the owner knows the new one.
//
// A worker that is lost takes its forks with it; references to values of a lost owner fail with its name.
//
// The scheme is that of PyTorch's RPC ("Remote Reference Protocol" in its documentation). Notices: for a reference
// that came from a call to its owner or from the owner itself, two, when it goes; for each time that a worker which
// does not own the value passes it on to a third one, three, and two when it goes; to the owner itself, one. They
// are urgent messages, but deletions told by reading threads and their acknowledgements; none is waited for.
//
// One per worker; any thread. Nothing is sent or destroyed while the lock is held. Budget of a message
// that comes: one uncontended lock, and an entry of a map for each reference in it.

#include <any>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <typeinfo>
#include <unordered_map>
#include <vector>

#include "treadle/core/base/gate.h"
#include "treadle/core/base/mutex.h"
#include "treadle/core/base/status.h"
#include "treadle/core/base/unique_function.h"
#include "treadle/core/rpc/coder.h"

namespace treadle::rpc {

class Engine;

// Unique in the job: the rank that made it and its counter there. RefIds and ForkIds are drawn from one counter.
struct GlobalId {
  int32_t rank = -1;
  uint64_t number = 0;
  auto operator<=>(const GlobalId&) const = default;
};
using RefId = GlobalId;
using ForkId = GlobalId;

// An entry of a message's fork list: the receiver gets fork `fork` of the value `ref` at `owner`.
struct ForkEntry {
  RefId ref;
  int32_t owner = -1;
  ForkId fork;
};

// A value at its owner, of any type, with the way to encode it when its type travels.
struct OwnedValue {
  std::shared_ptr<void> value;
  const std::type_info* type = nullptr;
  void (*encode)(Encoder&, const void*) = nullptr;  // null: this type does not travel
};

class References;

// The engine, in the hands of a thread that has a reference and perhaps no worker: what the engine is made of stays
// until this goes. Empty when its worker has ended. Shorter than the thread's stay in the function that asked for it.
class EngineUse {
 public:
  EngineUse() = default;
  explicit EngineUse(std::shared_ptr<References> references);
  explicit operator bool() const { return engine_ != nullptr; }
  Engine* operator->() const { return engine_; }
  Engine& operator*() const { return *engine_; }

 private:
  std::shared_ptr<References> references_;  // has the gate
  base::Gate::Use use_;
  Engine* engine_ = nullptr;
};

// One fork, shared by all copies of an RRef that came from it; the last one that goes deletes the fork.
class RefHandle {
 public:
  RefHandle(std::shared_ptr<References> references, ForkEntry entry, bool local)
      : references_(std::move(references)), entry_(entry), local_(local) {}
  ~RefHandle();
  RefHandle(const RefHandle&) = delete;
  RefHandle& operator=(const RefHandle&) = delete;

  const ForkEntry& entry() const { return entry_; }
  bool local() const { return local_; }  // this worker owns the value
  const std::shared_ptr<References>& references() const { return references_; }

 private:
  const std::shared_ptr<References> references_;
  const ForkEntry entry_;
  const bool local_;
};
using HandlePtr = std::shared_ptr<RefHandle>;

// What references tell each other's workers. The numbers travel on the wire: never renumber.
enum class RefNotice : uint8_t {
  kForkAdded = 1,      // user -> owner: `fork` exists
  kForkKnown = 2,      // owner -> user: and I know it
  kChildAccepted = 3,  // receiver -> sender: the owner knows the fork you sent me
  kForkDeleted = 4,    // user -> owner: `fork` is gone; told again until it is acknowledged
  kDeletionKnown = 5,  // owner -> user: and I have forgotten it
};

class References : public std::enable_shared_from_this<References> {
 public:
  using Send = std::function<void(int rank, RefNotice notice, const ForkEntry& entry)>;
  using WhenReady = UniqueFunction<void(Result<OwnedValue>)>;

  // `limit`: of the forks that each of the others may have of this worker.
  static constexpr size_t kUsualLimit = size_t{1} << 22;
  References(int selfRank, Send send, size_t limit = kUsualLimit)
      : self_(selfRank), limit_(limit), send_(std::move(send)) {}

  // The engine whose references these are. Set before the first use.
  void setEngine(Engine& engine) { engine_ = &engine; }
  EngineUse engine() { return EngineUse(shared_from_this()); }
  // Nobody gets the engine any more, and nothing is sent. Returns when all who have it are done.
  void awaitUsers() { gate_.close(); }

  // ---- values of this worker
  HandlePtr own(OwnedValue value);
  // The value that a request made is there, or why not.
  void fulfil(const RefId& ref, Result<OwnedValue> value);
  // Calls back with the value: at once, or when it is there, on the thread that brings it. A fetch or a call may
  // overtake the request that makes the value. The number by which `stopWaiting` knows it; 0: it was called.
  uint64_t whenReady(const RefId& ref, WhenReady callback);
  // Whether anybody but `rank` holds a reference to it or waits for it.
  bool wantedByOthers(const RefId& ref, int rank) const;
  // Drops the callback, unless it was or is being called.
  void stopWaiting(const RefId& ref, uint64_t number);
  // Likewise, and calls it with `why`.
  void endWait(const RefId& ref, uint64_t number, const Status& why);
  // The value of a handle of this worker's own, when it is there.
  std::optional<OwnedValue> valueOf(const HandlePtr& handle) const;

  // ---- references of this worker to values of others
  // A request to `owner`, which may be this worker itself, will make the value. The entry goes with the request.
  HandlePtr expect(int owner);
  // The request was answered: the owner has made the value, or why not. The handle may be gone already.
  void confirm(const ForkEntry& entry, const Status& outcome);
  // The owner was not sent the request after all.
  void notAsked(const ForkEntry& entry);
  bool confirmed(const HandlePtr& handle) const;
  Status failureOf(const HandlePtr& handle) const;  // why there will be no value, when that is known

  // ---- references in messages
  // Why there will be no value, where its owner was never asked for one: whoever got the reference would wait in vain.
  Status failureUnknownToOwner(const RefHandle& handle) const;
  // Makes a child of `handle` for `toRank`. Keeps what must live until it is accepted.
  ForkEntry fork(const HandlePtr& handle, int toRank);
  // A handle without a fork of its own: its value lives as long as somebody else's fork, whoever that is.
  HandlePtr borrow(const RefId& ref, int owner);
  // ResourceExhausted when `rank` has as many forks of this worker as it may, with `more` of them.
  Status roomFor(int rank, size_t more) const;
  // The message with these forks was not sent after all.
  void unfork(const std::vector<ForkEntry>& entries);
  // DataLoss for forks that `fromRank` did not number itself, or of values that were never asked for, and for a request
  // whose result, if it has one, it did not name itself. ResourceExhausted when it has given this worker more than it
  // may.
  Status checkGiven(int fromRank, const std::vector<ForkEntry>& entries, const ForkEntry* result = nullptr) const;
  // Takes over the forks that came with a message of `fromRank`, which are checked.
  std::vector<HandlePtr> adopt(int fromRank, const std::vector<ForkEntry>& entries);
  // Request for a new value: the requester's first fork. It is kept up to twice the limit, so that a refusal can be
  // told to whoever got the reference meanwhile.
  void adoptRequested(int fromRank, const ForkEntry& entry);

  // ResourceExhausted for a peer that has forks beyond twice the limit; DataLoss for one that speaks of a value that
  // was never asked for.
  Status onNotice(int fromRank, RefNotice notice, const ForkEntry& entry);
  // Tells owners again of the deletions that they have not acknowledged since the last time but one that this was
  // called. False when all are acknowledged.
  bool resendDeletions();
  void onLost(int rank, const Status& why);
  // Everything goes: the worker ends.
  void clear(const Status& why);

  struct Counts {
    size_t owned = 0;    // values that live here
    size_t forks = 0;    // forks of them that others hold
    size_t held = 0;     // forks of others' values that are held here
    size_t pending = 0;  // held ones that their owner has not confirmed, those kept for receivers, and deletions that
                         // their owner has not acknowledged
  };
  Counts counts() const;
  // How many references to values of this worker each of the others holds, by rank.
  std::map<int, size_t> holders() const;
  int self() const { return self_; }

 private:
  friend class RefHandle;
  friend class EngineUse;

  struct Owned {
    std::optional<Result<OwnedValue>> value;
    bool requested = false;       // the request that makes it has come
    std::map<ForkId, int> forks;  // and the rank that holds each
    size_t handles = 0;           // held by this worker itself
    std::map<uint64_t, WhenReady> waiting;
    std::optional<int> lostHolder;  // the last worker that was lost with a fork of it
  };
  struct Held {
    ForkEntry entry;
    bool confirmed = false;
    bool released = false;  // its handle is gone
    bool unasked = false;   // its owner was not sent the request
    Status failure = {};
    int giver = -1;  // who gave it to us; -1: we asked for it
    // Who is no owner waits to hear that the owner knows it.
    bool giverWaits() const { return giver >= 0 && !confirmed; }
  };
  struct Child {
    ForkEntry entry;
    int toRank;
    HandlePtr parent;
  };
  // What to do once the lock is let go.
  struct Deferred {
    std::vector<std::tuple<int, RefNotice, ForkEntry>> notices;
    std::vector<std::any> dropped;
    std::vector<UniqueFunction<void()>> calls;
  };

  GlobalId nextId() TREADLE_REQUIRES(mutex_) { return {self_, ++lastId_}; }
  bool neverMade(const GlobalId& id) const TREADLE_REQUIRES(mutex_) { return id.rank == self_ && id.number > lastId_; }
  WhenReady takeWaiting(const RefId& ref, uint64_t number, Deferred& later) TREADLE_REQUIRES(mutex_);
  void forgetGiven(int giver) TREADLE_REQUIRES(mutex_);
  void release(const RefHandle& handle);
  // The value that a peer speaks of. One that was unknown so far may still be made, unless it is certain that none
  // will.
  Owned& namedByPeer(const RefId& ref) TREADLE_REQUIRES(mutex_);
  void addFork(Owned& owned, const ForkId& fork, int holder) TREADLE_REQUIRES(mutex_);
  void removeFork(Owned& owned, const ForkId& fork) TREADLE_REQUIRES(mutex_);
  Status checkFlood(int rank) const TREADLE_REQUIRES(mutex_);
  Status overLimit(int rank, size_t held) const;
  void forget(const RefId& ref, int lost) TREADLE_REQUIRES(mutex_);
  void settle(Owned& owned, const Result<OwnedValue>& value, Deferred& later) TREADLE_REQUIRES(mutex_);
  void dropIfUnused(const RefId& ref, Deferred& later) TREADLE_REQUIRES(mutex_);
  void deleteIfDone(const ForkId& fork, Deferred& later) TREADLE_REQUIRES(mutex_);
  void dropChild(const ForkId& fork, Deferred& later) TREADLE_REQUIRES(mutex_);
  HandlePtr localHandle(const ForkEntry& entry) TREADLE_REQUIRES(mutex_);
  void perform(Deferred later);
  void performElsewhere(Deferred later);

  const int self_;
  const size_t limit_;
  const Send send_;
  base::Gate gate_;  // to `engine_`, and to what `send_` needs
  Engine* engine_ = nullptr;
  mutable Mutex mutex_;
  uint64_t lastId_ TREADLE_GUARDED_BY(mutex_) = 0, lastWaiting_ TREADLE_GUARDED_BY(mutex_) = 0;
  std::map<RefId, Owned> owned_ TREADLE_GUARDED_BY(mutex_);
  std::map<ForkId, Held> held_ TREADLE_GUARDED_BY(mutex_);
  std::map<ForkId, Child> children_ TREADLE_GUARDED_BY(mutex_);
  std::map<int, size_t> forksOf_ TREADLE_GUARDED_BY(mutex_);  // by rank: in `owned_` and `children_`
  struct Deletion {
    ForkEntry entry;
    int giver = -1;
    bool overdue = false;
  };
  // By rank: the forks in `held_` and `deletions_` that it gave to this worker.
  std::map<int, size_t> given_ TREADLE_GUARDED_BY(mutex_);
  // Deletions are told again so many at a time: the thread that does so has other things to do.
  static constexpr size_t kToldAgainAtOnce = 4096;
  ForkId toldAgain_ TREADLE_GUARDED_BY(mutex_);                      // the last one: the next time goes on behind it
  std::map<ForkId, Deletion> deletions_ TREADLE_GUARDED_BY(mutex_);  // not acknowledged
  std::map<int, Status> lost_ TREADLE_GUARDED_BY(mutex_);
  std::optional<int> lastLost_ TREADLE_GUARDED_BY(mutex_);
  // Values that went since a worker was lost, and which loss may be the cause: a reference that the lost worker passed
  // on may still be on its way to us, and is not to be taken for one to a value that is yet to be made. The last ones:
  // a worker that asks for one before gets an error at its time limit.
  static constexpr size_t kGone = 1U << 16;
  std::map<RefId, int> gone_ TREADLE_GUARDED_BY(mutex_);
  std::deque<RefId> goneInTurn_ TREADLE_GUARDED_BY(mutex_);
  bool cleared_ TREADLE_GUARDED_BY(mutex_) = false;
};

}  // namespace treadle::rpc

#pragma once
// Calls of one worker, outgoing and incoming. Outgoing: encodes a request, sends it on the connection to its callee,
// keeps it in the table of pending calls until its answer, deadline, cancellation or the callee's loss completes it.
// Incoming: looks up the function, runs it on the pool, answers on the connection that the request came on.
//
// Budget of an empty call at the caller: one system call to send and one to receive, eight uncontended locks, five
// small allocations; no thread is woken when the caller waits. What they are: engine_outgoing.cc and
// engine_incoming.cc.
//
// Owned by the worker, which closes it before it goes. Any thread may call anything.

#include <functional>
#include <map>
#include <memory>
#include <unordered_map>

#include "treadle/core/base/growing_table.h"
#include "treadle/core/cluster/coordinator.h"
#include "treadle/core/cluster/membership.h"
#include "treadle/core/io/executor.h"
#include "treadle/core/rpc/credits.h"
#include "treadle/core/rpc/deadlines.h"
#include "treadle/core/rpc/functions.h"
#include "treadle/core/rpc/messages.h"
#include "treadle/core/rpc/preparation.h"

namespace treadle {

// The options of one call, where they differ from the worker's defaults: worker.with({.timeout = 5s}).call<&f>(...).
struct CallOptions {
  // From the start of the call to its answer, including arguments, queues and the handler; the callee receives the
  // remaining time. Default: the worker's rpcTimeout; kNoTimeout for no limit.
  std::optional<Duration> timeout = {};
  // Nothing waits for its effect: it goes with the next message to that worker, within 5 ms if there is none. For
  // notices that would otherwise cost a system call and a wake-up each.
  bool lazy = false;
  // From -128 to 127. Where large tensors share sockets, those with a higher priority go before all with a lower one to
  // the same worker; those with equal priority take turns. The answer's tensors use it too.
  int priority = 0;
  // For `call` of a function that is declared idempotent: the maximum number of attempts, each within `timeout`. It
  // tries again when the answer does not come in time, when the callee is overloaded (it answers with ResourceError),
  // and when the callee is lost and, in an open job, another worker joins under the name that was called. Other errors,
  // including those of the function, are not retried. The other call functions accept only 1.
  int attempts = 1;
};

}  // namespace treadle

namespace treadle::rpc {

// A caller that waits for its answer, on its stack. Before anything is sent it knows that it may wait, or the function
// does not run. However the wait ends, no callee reads the caller's memory any more.
struct WaitingCaller {
  io::Executor::Permit permit;
  std::shared_ptr<link::MemoryOffer> offer;
};

// A call as the typed layer hands it over.
struct OutgoingCall {
  int rank = -1;
  std::string function;
  std::string signature;
  HandlePtr target;  // member call or fetch
  bool fetch = false;
  WaitingCaller* caller = nullptr;  // null: nobody waits yet
  CallOptions options;
  UniqueFunction<void(Encoder&)> encode;
  // With the values of the answer, or why there are none. On the thread that reads the answer. Must not throw.
  UniqueFunction<void(Result<Decoder*>)> complete;
};

// What the future of a call needs to wait for it and to cancel it.
struct CallTicket {
  uint64_t id = 0;
  TimePoint deadline = kNever;
  std::shared_ptr<link::Connection> connection;  // null: completed already
};

struct CallCounts {
  uint64_t sent = 0, handled = 0;  // requests
  // The same without those to and of workers that are lost: what two workers that live count of each other.
  uint64_t sentToLiving = 0, handledOfLiving = 0;
  size_t pending = 0, running = 0;
  size_t unansweredBytes = 0, bytesToAnswer = 0;  // of requests of this worker; of its peers'
  uint64_t deadlineLooks = 0;                     // at pending calls, to find those that are late: a few for each call
};

struct EngineOptions {
  Duration rpcTimeout = std::chrono::seconds(60);
  size_t maxInFlightBytes = size_t{1} << 30;  // of requests to one peer, and of one peer here
  size_t maxQueuedBytes = 64U << 20;          // the connections' own
  size_t referenceLimit = References::kUsualLimit;
};

class Engine final : public cluster::MessageHandler {
 public:
  Engine(cluster::Membership& membership, io::Reactor& reactor, io::Executor& executor, Functions functions,
         std::unique_ptr<Interceptor> interceptor, const EngineOptions& options, Worker* worker);
  ~Engine() override;

  // ---- outgoing. Failures after the arguments were encoded reach `complete`; exceptions of `encode` are thrown.
  CallTicket send(OutgoingCall call);
  // The same with a reference for the result, which is there at once.
  HandlePtr sendForReference(OutgoingCall call);
  void cancel(uint64_t id);

  // ---- incoming
  void onMessage(int rank, const std::shared_ptr<link::Connection>& from, link::Message message) override;
  void onLost(int rank, const Status& why) override;
  void sendAnswer(const std::shared_ptr<IncomingCall>& call, Status status, UniqueFunction<void(Encoder&)> encode);

  // Makes current on this thread what a handler of `call` finds there. May be null.
  std::unique_ptr<HandlerScope> enter(const IncomingCall& call);
  // Ready after `delay`; cancelled when the worker ends.
  Future<void> after(Duration delay);
  // Runs `hook`, which must not wait, when the worker ends, at once if it has; not if `ready` is by then.
  void atEndUnless(io::FutureCore& ready, UniqueFunction<void()> hook);

  // Sends no answers from now on. Called before the farewell: a handler may fail because this worker leaves, and its
  // caller must not take that for the outcome of the call. The farewell ends the call.
  void stopAnswering() { answering_.store(false); }
  // Fails everything that is pending, lets go of all references. Nothing runs after that.
  void close(const Status& why);

  // Called when nothing is pending or running any more.
  void setIdleHook(std::function<void()> hook) { idleHook_ = std::move(hook); }
  CallCounts counts() const;
  // What keeps this worker from leaving: answers that it awaits, handlers that it runs, and who holds references to its
  // values. Empty: nothing.
  std::string whatIsLeft() const;
  // OK until `close`; then the StateError for whoever still wants something of this worker.
  Status whetherHere() const;

  const Functions& functions() const { return functions_; }
  cluster::Membership& membership() { return membership_; }
  io::Executor& executor() { return executor_; }
  References& references() { return *references_; }
  Interceptor* interceptor() { return interceptor_.get(); }
  // For what may outlive this object. Let a future keep a weak_ptr: the interceptor may own that future.
  const std::shared_ptr<Interceptor>& sharedInterceptor() const { return interceptor_; }
  Worker* worker() const { return worker_; }
  Duration rpcTimeout() const { return options_.rpcTimeout; }

 private:
  // In the table until its answer is here, so that what it holds of the callee is given back then. One that was given
  // up stays without `complete`.
  struct Pending {
    int rank;
    std::string function, signature;
    TimePoint deadline;
    std::shared_ptr<link::Connection> connection;
    // Live until the answer: the callee resolves them without forks of its own.
    HandlePtr target;
    std::vector<HandlePtr> inputs;
    UniqueFunction<void(Result<Decoder*>)> complete;
    Duration timeout;
    size_t bytes = 0;  // of the callee's credits
  };

  using PendingTable = std::unordered_map<uint64_t, Pending>;
  struct Taken {
    PendingTable::node_type entry;
    bool idle;  // nothing was left
  };

  CallTicket submit(OutgoingCall call, std::optional<ForkEntry> result);
  void forgetAtEnd(uint64_t number);
  Result<std::shared_ptr<link::Connection>> connectionFor(const OutgoingCall& call) const;
  static MessageHeader headerOf(const OutgoingCall& call, const std::optional<ForkEntry>& result);
  Status takeCredits(const Pending& pending);
  uint64_t addPending(Pending pending);
  void notSent(int rank);
  // `from`: the worker that answers. An answer of another one than was called counts for nothing.
  std::optional<Taken> takePending(uint64_t id, std::optional<int> from);
  void finishPending(uint64_t id, Result<Decoder*> result, std::optional<int> from = {});
  std::optional<Pending> stopWaiting(uint64_t id);
  Status told(const Pending& pending, const Status& status, bool fromThere = false) const;
  static void sendCancel(link::Connection& connection, uint64_t id);
  bool giveUp(uint64_t id, const Status& why);  // false when it has ended, or was given up before
  // Counts as a look at the call.
  bool isWaitedFor(uint64_t id) TREADLE_REQUIRES(mutex_);
  void expire();
  void scheduleExpiry(TimePoint due) TREADLE_REQUIRES(mutex_);

  void onRequest(int rank, const std::shared_ptr<link::Connection>& from, const MessageHeader& header,
                 link::Message message, size_t valuesAt);
  void onAnswer(int rank, MessageHeader header, link::Message message, size_t valuesAt);
  void completeWith(int rank, const MessageHeader& header, link::Message& message, size_t valuesAt,
                    std::vector<HandlePtr> handles);
  void onCancel(int rank, uint64_t id);
  bool accept(const std::shared_ptr<IncomingCall>& call, size_t inputs);
  void dropRequest(int rank, const MessageHeader& header);
  bool wantedByOthers(const IncomingCall& call) const;
  // A user's values may go with it, whose destructors may take long, call or wait: not on a thread that reads.
  template <class T>
  void dropInPool(T held) {
    executor_.post([held = std::move(held)] {});
  }
  static void failWhenWhole(const std::shared_ptr<IncomingCall>& call, const std::shared_ptr<link::Arrival>& arrival,
                            const Status& why);
  void begin(const std::shared_ptr<IncomingCall>& call, const MessageHeader& header,
             const std::shared_ptr<link::Arrival>& arrival);
  void awaitInputs(const std::shared_ptr<Preparation>& preparation, const std::vector<InputEntry>& entries);
  void fetchInput(const std::shared_ptr<Preparation>& preparation, Input& input, const InputEntry& entry);
  void run(const std::shared_ptr<IncomingCall>& call, const Functions::Entry& entry);
  void answerFetch(const std::shared_ptr<IncomingCall>& call);
  void sendFailure(const std::shared_ptr<IncomingCall>& call, MessageHeader& header, Status status);
  Result<const Functions::Entry*> lookUp(const MessageHeader& header) const;
  void answered(IncomingCall& call);
  bool idle() const TREADLE_REQUIRES(mutex_) { return pending_.size() == givenUp_ && incoming_.empty(); }
  void sendNotice(int rank, RefNotice notice, const ForkEntry& entry);
  void resendLater();
  void tellIfIdle();
  void tellIfIdle(bool nothingLeft) const;

  cluster::Membership& membership_;
  io::Reactor& reactor_;
  io::Executor& executor_;
  const Functions functions_;
  const std::shared_ptr<Interceptor> interceptor_;  // also of the executor, which may outlive this object
  const EngineOptions options_;
  Worker* const worker_;
  const std::shared_ptr<References> references_;
  std::function<void()> idleHook_;
  struct PeerCalls {
    explicit PeerCalls(size_t limitBytes) : toPeer(limitBytes), fromPeer(limitBytes) {}
    Credits toPeer, fromPeer;
    uint64_t sent = 0, handled = 0;  // guarded by the engine's lock
    bool lost = false;               // likewise
  };
  PeerCalls& peer(int rank) { return peers_[static_cast<size_t>(rank)]; }
  base::GrowingTable<PeerCalls> peers_;  // by rank

  mutable Mutex mutex_;
  PendingTable pending_ TREADLE_GUARDED_BY(mutex_);
  size_t givenUp_ TREADLE_GUARDED_BY(mutex_) = 0;  // of pending_
  std::map<std::pair<int, uint64_t>, std::shared_ptr<IncomingCall>> incoming_ TREADLE_GUARDED_BY(mutex_);
  uint64_t lastId_ TREADLE_GUARDED_BY(mutex_) = 0;
  uint64_t sent_ TREADLE_GUARDED_BY(mutex_) = 0, handled_ TREADLE_GUARDED_BY(mutex_) = 0;
  uint64_t sentToLost_ TREADLE_GUARDED_BY(mutex_) = 0, handledOfLost_ TREADLE_GUARDED_BY(mutex_) = 0;
  Deadlines deadlines_ TREADLE_GUARDED_BY(mutex_);  // of the calls in pending_ that somebody waits for
  uint64_t deadlineLooks_ TREADLE_GUARDED_BY(mutex_) = 0;
  std::optional<std::pair<TimePoint, io::Reactor::TimerId>> expiry_ TREADLE_GUARDED_BY(mutex_);
  std::atomic<bool> answering_ = true, resending_ = false;
  io::Reactor::TimerId resendTimer_ TREADLE_GUARDED_BY(mutex_) = 0;
  uint64_t lastHook_ TREADLE_GUARDED_BY(mutex_) = 0;
  std::map<uint64_t, UniqueFunction<void()>> endHooks_ TREADLE_GUARDED_BY(mutex_);
  Status closed_ TREADLE_GUARDED_BY(mutex_);
};

}  // namespace treadle::rpc

#pragma once
// A Worker is one membership in one job. It owns everything below it: threads, connections, references, groups. Several
// workers may live in one process. `join` returns when all expected workers are connected, `shutdown` when all are
// done. A worker that is destroyed without a shutdown leaves the job and reports that to the others.
//
// Any thread may call any function, except that handlers must not call `shutdown` or `leave`. The last owner may be a
// handler: the worker is then destroyed on a separate thread, after its handlers have ended.

#include <any>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "treadle/core/memory/warm_cache.h"
#include "treadle/core/summation/job.h"
#include "treadle/core/summation/traffic.h"
#include "treadle/core/worker/call_methods.h"
#include "treadle/core/worker/options.h"

namespace treadle {

class Worker;

namespace rpc {

template <class T>
inline constexpr bool kIsSharedPtr = false;
template <class T>
inline constexpr bool kIsSharedPtr<std::shared_ptr<T>> = true;

}  // namespace rpc

// Counters of a worker's work and holdings, taken at about the same moment. A call of this worker to itself counts as
// sent and as handled.
struct Metrics {
  uint64_t callsSent = 0, callsHandled = 0;
  size_t callsPending = 0, handlersRunning = 0;
  size_t valuesOwned = 0;     // values that live here and that references point to
  size_t forksOfOwned = 0;    // references that other workers hold to them
  size_t referencesHeld = 0;  // references to other workers' values
  size_t referencesPending = 0;
  size_t unansweredBytes = 0;        // of this worker's requests, including calls that were given up
  size_t bytesToAnswer = 0;          // of peers' requests that are not answered yet
  memory::PoolCounters memory = {};  // blocks for tensors; whole process
  size_t memoryLimitBytes = 0;       // limit of `memory` and `warm` together; 0: the process has no pool
  memory::WarmCounters warm = {};    // memory of other CPU tensors (JoinOptions::warmMemory); whole process
  summation::SummationCounters summation = {};
};

// Returns to the system the memory that this process keeps for later tensors. The next tensors pay for fresh memory.
void trimMemory();

// Calls with their own options: worker.with({.timeout = 5s}).call<&f>(peer, x). Must not outlive the worker.
class CallProxy : public CallMethods<CallProxy> {
 public:
  CallProxy(rpc::Engine& engine, CallOptions options) : engine_(engine), options_(options) {}

 private:
  friend class CallMethods<CallProxy>;
  rpc::Engine& engine() const { return engine_; }
  CallOptions callOptions() const { return options_; }

  rpc::Engine& engine_;
  const CallOptions options_;
};

// The additions of a room above core to a worker, set when the worker is made.
struct WorkerExtensions {
  // Called with the worker before it joins.
  std::function<std::unique_ptr<rpc::Interceptor>(Worker&)> interceptor;
  Functions functions;
  std::any state;  // that room's state, for the life of the worker
};

class Worker : public CallMethods<Worker>, public summation::Job {
 public:
  // Meets the other workers of the job. Returns when all are connected to all, within joinTimeout. Throws ArgumentError
  // (options, a name used twice), StateError (no launcher, an address beyond the loopback without a key or
  // certificates, another version, a port in use), TimeoutError naming the ranks that did not come, PeerLostError (a
  // worker died meanwhile), AuthError (another key). In a job of a fixed size, when one worker cannot join, all report
  // the reason and none of them joins.
  static std::shared_ptr<Worker> join(JoinOptions options);
  static std::shared_ptr<Worker> join(JoinOptions options, WorkerExtensions extensions);
  ~Worker() override;

  const WorkerInfo& self() const;
  WorkerInfo peer(std::string_view name) const;  // NotFoundError
  WorkerInfo peer(int rank) const;               // NotFoundError
  // All workers by rank, including this one, and without summation servers. In an open job: the workers that are in it
  // now.
  std::vector<WorkerInfo> peers() const;
  // The summation servers of the job (Launch::servers): workers that take part in services (SummationService) and have
  // no other part; they are not in barriers. A program for them is `treadle server`.
  std::vector<WorkerInfo> servers() const;
  // Open jobs: returns when a worker of this name has joined. TimeoutError. In a job of a fixed size that has no such
  // worker: NotFoundError at once.
  WorkerInfo waitForPeer(std::string_view name, Duration timeout = kNoTimeout) const;

  // A reference to a value that stays here; T need not travel. The last reference to it on any worker destroys the
  // value.
  template <class T>
    requires(!rpc::kIsSharedPtr<T>)
  RRef<T> makeRRef(T value) {
    return makeRRef(std::make_shared<T>(std::move(value)));
  }
  // The same for the object of a std::shared_ptr, which local code shares. ArgumentError for null.
  template <class Pointer>
    requires(rpc::kIsSharedPtr<Pointer>)
  RRef<typename Pointer::element_type> makeRRef(Pointer value) {
    if (!value) raise(invalidArgument("makeRRef was given a null pointer"));
    return RRef<typename Pointer::element_type>(engine().references().own(rpc::ownedValue(std::move(value))));
  }
  // Runs `f(arguments...)` on this worker's pool, as a handler (JoinOptions::maxConcurrentHandlers). The future gets
  // the result or exception of `f`, also of a Task. CancelledError if the worker leaves before `f` ran.
  template <class F, class... A>
    requires(sizeof...(A) > 0)
  auto spawn(F f, A... arguments) {
    return spawn([f = std::move(f), ... held = std::move(arguments)]() mutable { return f(std::move(held)...); });
  }
  template <class F>
  auto spawn(F f) {
    using R = std::invoke_result_t<F&>;
    throwIfError(engine().whetherHere());
    if constexpr (io::kIsTask<R>) {
      return spawnTask(std::make_shared<F>(std::move(f)));
    } else {
      return spawnFunction<R>(std::move(f));
    }
  }
  // Ready after `delay`: a Task awaits this instead of sleeping. CancelledError if the worker leaves before.
  Future<void> after(Duration delay);

  CallProxy with(CallOptions options) const { return {engine(), options}; }

  Metrics metrics() const;
  // Reports which channels to a worker are in use, and why the others are not. PeerLostError for a lost worker.
  PeerChannels channelsTo(const WorkerRef& to) const;
  // Returns when all workers, but for servers, have called it the same number of times. It has no time limit. In a job
  // of a fixed size it ends with PeerLostError as soon as one of these is lost, and at once when one was lost before.
  // In an open job it covers the workers that are in the job: when one of them is lost, the pending barriers fail with
  // its name, and the next one covers the remaining workers.
  void barrier();
  // A barrier with values: gives `value` to all workers and returns the value of each, by worker name. For small values
  // such as addresses or settings: at most 65,535 bytes encoded, no tensors, no references (ResourceError,
  // ArgumentError).
  template <class T>
  std::map<std::string, T> allGather(const T& value) {
    static_assert(rpc::Travels<T>, "a value that is given to all has to be of a type that travels");
    rpc::Encoder encoder(engine().references(), self().rank, nullptr);
    rpc::Codec<T>::encode(encoder, value);
    std::map<std::string, T> values;
    for (auto& [name, bytes] : gather(encoder)) {
      rpc::Decoder decoder(engine().references(), std::move(bytes), 0, {}, {}, nullptr);
      values.emplace(name, rpc::Codec<T>::decode(decoder));
      decoder.finish();
    }
    return values;
  }
  // Returns when all workers have called it and no call is in flight anywhere (docs/protocol/liveness_and_shutdown.md).
  // References that are still held cannot be used afterwards. PeerLostError names a lost worker, but no server; in an
  // open job only the loss of the keeper fails it. TimeoutError says what is left: this worker is then still in its
  // job, and the others wait until it calls this again or is gone. StateError inside a handler.
  void shutdown(ShutdownOptions options = {});
  // Open jobs: this worker leaves, and the others go on. Waits until it has no pending call, runs no handler, and no
  // worker holds references to its values. TimeoutError says what is left; this worker is then still in its job. After
  // it has left, calls to it fail with PeerLostError, and the references that it held are dropped. The keeper of the
  // job, the worker that admits new ones, first hands that role to another worker. StateError in a job of a fixed size,
  // and inside a handler.
  void leave(ShutdownOptions options = {});

  // ---- for the rooms above
  rpc::Engine& engine() const;
  group::GroupService& groups() override;
  summation::Services& services() override;
  const std::any& extensionState() const;
  static Worker& of(rpc::Engine& engine);

  class Core;
  explicit Worker(std::unique_ptr<Core> core);

 private:
  friend class CallMethods<Worker>;
  std::vector<WorkerInfo> members(bool servers) const;
  void checkMeets(const char* what) const;
  static void destroy(Worker* worker);
  template <class R, class F>
  Future<R> spawnFunction(F f) {
    Promise<R> promise(&engine().executor());
    Future<R> future = promise.future();
    auto task = std::make_shared<std::pair<Promise<R>, F>>(std::move(promise), std::move(f));
    engine().executor().post([task] {
      try {
        io::Unit nothing;
        task->first.set(io::invokeForValue(task->second, nothing));
      } catch (...) {
        task->first.fail(statusOfCurrentException("a spawned function"));
      }
    });
    return future;
  }
  template <class F>
  auto spawnTask(std::shared_ptr<F> f) {
    io::ContinueOn pool(&engine().executor());
    auto task = io::makeReady(io::taskOf(*f), pool, [pool](auto stretch) { pool.post(std::move(stretch)); }, f);
    pool.post([run = task.run] { run->begin(); });
    engine().atEndUnless(*sharedStateOf(task.future), [weak = std::weak_ptr(task.run)] {
      if (auto alive = weak.lock()) alive->cancel();
    });
    return task.future;
  }
  CallOptions callOptions() const { return {}; }
  void mayEnd(const char* how) const;
  Status withOwnWork(const Status& status) const;
  std::map<std::string, std::vector<std::byte>> gather(rpc::Encoder& encoder);

  std::unique_ptr<Core> core_;
};

// Runs `f`, which may block on something outside Treadle: meanwhile another thread takes over the polling of the
// handler's thread. No effect outside a handler. ResourceError when too many handlers wait, and on a thread that polls
// or reads for others (in a codec, for example).
template <class F>
auto blocking(F&& f) {
  io::Executor::Blocking scope;
  throwIfError(scope.status());
  return std::forward<F>(f)();
}

}  // namespace treadle

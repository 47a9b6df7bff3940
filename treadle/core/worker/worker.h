#pragma once
// One membership in one job, and the owner of everything below it: threads, connections, references, groups. Several
// workers may live in one process. `join` returns when every expected worker is there; `shutdown` when all are done.
// A worker that is destroyed without a shutdown leaves the job, and the others are told so.
//
// Any thread may call anything, but `shutdown` from none of the worker's own handlers. The last owner may be a handler:
// the worker then goes on a thread of its own, when its handlers have ended.

#include <any>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "treadle/core/group/job.h"
#include "treadle/core/memory/warm_cache.h"
#include "treadle/core/worker/call_methods.h"
#include "treadle/core/worker/options.h"

namespace treadle {

class Worker;

// Numbers on what a worker does and holds, at about one moment. Calls of this worker to itself count on both sides.
struct Metrics {
  uint64_t callsSent = 0, callsHandled = 0;
  size_t callsPending = 0, handlersRunning = 0;
  size_t valuesOwned = 0;     // values that references point to and that live here
  size_t forksOfOwned = 0;    // references of other workers to them
  size_t referencesHeld = 0;  // references to values of others
  size_t referencesPending = 0;
  size_t unansweredBytes = 0;        // of requests of this worker, also of calls that were given up
  size_t bytesToAnswer = 0;          // of requests of others
  memory::PoolCounters memory = {};  // blocks for tensors: of the whole process
  size_t memoryLimitBytes = 0;       // of these; 0: none is kept for them
  memory::WarmCounters warm = {};    // other CPU tensors' memory (JoinOptions::warmMemory): of the whole process
};

// Returns to the system the memory that this process keeps for later tensors. The next ones pay for fresh memory.
void trimMemory();

// Calls with options of their own: worker.with({.timeout = 5s}).call<&f>(peer, x). Must not outlive the worker.
class Caller : public CallMethods<Caller> {
 public:
  Caller(rpc::Engine& engine, CallOptions options) : engine_(engine), options_(options) {}

 private:
  friend class CallMethods<Caller>;
  rpc::Engine& engine() const { return engine_; }
  CallOptions callOptions() const { return options_; }

  rpc::Engine& engine_;
  const CallOptions options_;
};

// What a room above core adds to a worker, made with it.
struct WorkerExtensions {
  // Given the worker before it has joined.
  std::function<std::unique_ptr<rpc::Interceptor>(Worker&)> interceptor;
  Functions functions;
  std::any state;  // of that room, for the life of the worker
};

class Worker : public CallMethods<Worker>, public group::Job {
 public:
  // Meets the other workers of the job and returns when all are connected to all, within joinTimeout. Throws
  // ArgumentError (options, a name used twice), StateError (no launcher, no loopback address, another version, a
  // port in use), TimeoutError naming the ranks that did not come, PeerLostError (one died meanwhile), AuthError
  // (another key). All workers hear of what keeps one of them out, and none of them joins.
  static std::shared_ptr<Worker> join(JoinOptions options);
  static std::shared_ptr<Worker> join(JoinOptions options, WorkerExtensions extensions);
  ~Worker() override;

  const WorkerInfo& self() const;
  WorkerInfo peer(std::string_view name) const;  // NotFoundError
  WorkerInfo peer(int rank) const;               // NotFoundError
  // All workers, this one too, by rank. Of an open job those that are in it now.
  std::vector<WorkerInfo> peers() const;
  // Open jobs: returns when a worker of this name has joined. TimeoutError; NotFoundError at once in a job of a fixed
  // size that has no such worker.
  WorkerInfo waitForPeer(std::string_view name, Duration timeout = kWhilePeerLives) const;

  // A reference to a value that stays here; T need not travel. The value goes with the last reference to it anywhere.
  template <class T>
  RRef<T> own(T value) {
    return ownShared(std::make_shared<T>(std::move(value)));
  }
  // The same for an object that others here hold too.
  template <class T>
  RRef<T> ownShared(std::shared_ptr<T> value) {
    if (!value) raise(invalidArgument("ownShared was given a null pointer"));
    return RRef<T>(engine().references().own(rpc::ownedValue(std::move(value))));
  }
  // Runs `f(arguments...)` on the pool here, where it counts as a handler (JoinOptions::maxRunning). The future has its
  // result or what it threw, also that of a Task; CancelledError if the worker leaves before it ran.
  template <class F, class... A>
    requires(sizeof...(A) > 0)
  auto fork(F f, A... arguments) {
    return fork([f = std::move(f), ... held = std::move(arguments)]() mutable { return f(std::move(held)...); });
  }
  template <class F>
  auto fork(F f) {
    using R = std::invoke_result_t<F&>;
    throwIfError(engine().whetherHere());
    if constexpr (io::kIsTask<R>) {
      return forkTask(std::make_shared<F>(std::move(f)));
    } else {
      return forkFunction<R>(std::move(f));
    }
  }
  // Ready when `delay` has passed: what a Task awaits instead of sleeping. CancelledError if the worker leaves before.
  Future<void> after(Duration delay);

  Caller with(CallOptions options) const { return {engine(), options}; }

  Metrics metrics() const;
  // Which ways to a worker are in use, and why the others are not. PeerLostError for one that is lost.
  PeerChannels channelsTo(const To& to) const;
  // Returns when all workers have called it equally often. No time limit but the workers' lives: PeerLostError as
  // soon as one of them is lost, at once when one was.
  // In an open job all are those that are in it, and the barriers that wait when one is lost fail with its name; the
  // next one is among those that are left.
  void barrier();
  // Gives `value` to all workers, and yields what each gave, by name: a barrier with values. For small ones, such as
  // addresses or settings: at most 65,535 bytes encoded, no tensors and no references (ResourceError, ArgumentError).
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
  // Returns when all workers have called it and no call is under way anywhere
  // (docs/protocol/liveness_and_shutdown.md); references that are still held are of no use afterwards.
  // PeerLostError names a worker that was lost meanwhile, TimeoutError what is left: then the worker is still
  // in its job, and the others wait in theirs until it calls this again or is gone.
  // StateError inside a handler.
  void shutdown(ShutdownOptions options = {});
  // Open jobs: this worker leaves, and the others go on. Waits until it awaits no answer, runs no handler, and nobody
  // holds references to its values; TimeoutError says what is left, and the worker is still in its job. Then calls to
  // it fail with PeerLostError, and references that it held are dropped. The keeper of the job, who lets workers in,
  // makes another one that. StateError in a job of a fixed size, and inside a handler.
  void leave(ShutdownOptions options = {});

  // ---- for the rooms above
  rpc::Engine& engine() const;
  group::GroupService& groups() override;
  const std::any& extensionState() const;
  static Worker& of(rpc::Engine& engine);

  class Core;
  explicit Worker(std::unique_ptr<Core> core);

 private:
  friend class CallMethods<Worker>;
  static void destroy(Worker* worker);
  template <class R, class F>
  Future<R> forkFunction(F f) {
    Promise<R> promise(&engine().executor());
    Future<R> future = promise.future();
    auto task = std::make_shared<std::pair<Promise<R>, F>>(std::move(promise), std::move(f));
    engine().executor().post([task] {
      try {
        io::Unit nothing;
        task->first.set(io::invokeForValue(task->second, nothing));
      } catch (...) {
        task->first.fail(statusOfCurrentException("a forked function"));
      }
    });
    return future;
  }
  template <class F>
  auto forkTask(std::shared_ptr<F> f) {
    io::ContinueOn pool(&engine().executor());
    auto task = io::makeReady(io::taskOf(*f), pool, [pool](auto stretch) { pool.post(std::move(stretch)); }, f);
    pool.post([run = task.run] { run->begin(); });
    engine().atEndUnless(*task.future.share(), [weak = std::weak_ptr(task.run)] {
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

// Says, while `f` runs, that this handler may block on something that is not Treadle's: another thread takes over what
// the handler's thread would have to see to. Free of effect elsewhere. ResourceError when too many handlers wait, and
// on a thread that polls or reads what others wait for (in a codec, say).
template <class F>
auto blocking(F&& f) {
  io::Executor::Blocking scope;
  throwIfError(scope.status());
  return std::forward<F>(f)();
}

}  // namespace treadle

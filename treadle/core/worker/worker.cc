#include "treadle/core/worker/worker.h"

#include <unistd.h>

#include <exception>
#include <thread>

#include "treadle/core/base/log.h"
#include "treadle/core/worker/core.h"

namespace treadle {

std::shared_ptr<Worker> Worker::join(JoinOptions options) { return join(std::move(options), {}); }

std::shared_ptr<Worker> Worker::join(JoinOptions options, WorkerExtensions extensions) {
  throwIfError(options.validate());
  Launch launch = options.launch ? *options.launch : valueOrThrow(Launch::detect());
  throwIfError(launch.validate());
  cluster::tellLauncher(options.name);
  std::shared_ptr<Worker> worker(std::make_unique<Worker>(Core::make(std::move(options), std::move(launch))).release(),
                                 &Worker::destroy);
  worker->core_->start(*worker, std::move(extensions));
  Status met = worker->core_->meet();
  if (met.ok()) return worker;
  worker->core_->leave("it could not join: " + met.message());
  raise(std::move(met));
}

// The last owner may be a handler or a callback, on one of the threads that the worker's end waits for.
void Worker::destroy(Worker* worker) {
  std::unique_ptr<Worker> owner(worker);
  bool awaited = io::Executor::onPoolThread() || link::Connection::readsOnThisThread();
  if (awaited) std::thread([owner = std::move(owner)]() mutable { owner.reset(); }).detach();
}

Worker::Worker(std::unique_ptr<Core> core) : core_(std::move(core)) {}

Worker::~Worker() {
  // In a child of fork() nothing of this is ours: a farewell on the parent's sockets would end the parent's job.
  if (core_->process != ::getpid()) {
    (void)core_.release();
    return;
  }
  core_->leave(std::uncaught_exceptions() > 0 ? "it ended by an exception" : "it ended without shutdown()");
}

const WorkerInfo& Worker::self() const { return core_->self; }

WorkerInfo Worker::peer(std::string_view name) const { return peer(valueOrThrow(core_->membership->rankOf(name))); }

WorkerInfo Worker::peer(int rank) const {
  throwIfError(core_->membership->checkRank(rank));
  return core_->membership->info(rank);
}

std::vector<WorkerInfo> Worker::peers() const {
  std::vector<WorkerInfo> all;
  for (int rank = 0; rank < core_->launch.worldSize; ++rank) all.push_back(peer(rank));
  return all;
}

namespace {

memory::PoolCounters memoryCounters() {
  memory::BlockPool* pool = memory::BlockPool::ofProcess();
  return pool != nullptr ? pool->counters() : memory::PoolCounters();
}

}  // namespace

void trimMemory() {
  if (memory::BlockPool* pool = memory::BlockPool::ofProcess(); pool != nullptr) pool->trim();
}

Future<void> Worker::after(Duration delay) {
  throwIfError(engine().whetherHere());
  return engine().after(delay);
}

Metrics Worker::metrics() const {
  rpc::CallCounts calls = core_->engine->counts();
  rpc::References::Counts references = core_->engine->references().counts();
  return {calls.sent,          calls.handled,      calls.pending,
          calls.running,       references.owned,   references.forks,
          references.held,     references.pending, calls.unansweredBytes,
          calls.bytesToAnswer, memoryCounters(),   core_->memoryLimitBytes()};
}

PeerChannels Worker::channelsTo(const To& to) const {
  return valueOrThrow(core_->channelsTo(to.rank(*core_->membership)));
}

void Worker::barrier() {
  throwIfError(core_->engine->whetherHere());
  throwIfError(core_->coordinator->barrier(kNever));
}

// What the coordinator cannot know: what holds up this worker itself.
Status Worker::withOwnWork(const Status& status) const {
  Metrics now = metrics();
  auto counted = [](size_t count, const std::string& what) {
    return std::to_string(count) + " " + what + (count == 1 ? "" : "s");
  };
  if (status.code() != Code::kDeadlineExceeded || now.callsPending + now.handlersRunning == 0) return status;
  return deadlineExceeded(status.message() + "; this worker itself awaits " + counted(now.callsPending, "answer") +
                          " and runs " + counted(now.handlersRunning, "handler"));
}

void Worker::shutdown(ShutdownOptions options) {
  if (core_->process != ::getpid())
    raise(
        failedPrecondition("this worker belongs to the process that joined; a child of fork() has no part in the job"));
  if (io::Executor::onPoolThread())
    raise(failedPrecondition("shutdown() was called inside a handler; call it from the program's own thread"));
  if (Status done = core_->coordinator->shutdown(deadlineAfter(options.timeout)); !done.ok()) raise(withOwnWork(done));
  core_->leave("");
}

rpc::Engine& Worker::engine() const { return *core_->engine; }

group::GroupService& Worker::groups() { return *core_->groups; }

const std::any& Worker::extensionState() const { return core_->extensionState; }

Worker& Worker::of(rpc::Engine& engine) { return *engine.worker(); }

}  // namespace treadle

#include "treadle/core/worker/worker.h"

#include <unistd.h>

#include <exception>
#include <thread>

#include "treadle/core/base/log.h"
#include "treadle/core/io/serving.h"
#include "treadle/core/memory/warm_cache.h"
#include "treadle/core/worker/core.h"

namespace treadle {

std::shared_ptr<Worker> Worker::join(JoinOptions options) { return join(std::move(options), {}); }

namespace {

std::string nameByRank(const Launch& launch) {
  if (launch.open()) raise(invalidArgument("a worker of an open job needs a name of its own: set JoinOptions::name"));
  return (launch.isServer() ? "server" : "worker") + std::to_string(launch.rank);
}

}  // namespace

std::shared_ptr<Worker> Worker::join(JoinOptions options, WorkerExtensions extensions) {
  throwIfError(options.validate());
  Launch launch = options.launch ? *options.launch : valueOrThrow(Launch::detect());
  throwIfError(launch.validate());
  if (options.name.empty()) options.name = nameByRank(launch);
  cluster::tellLauncher(options.name);
  std::shared_ptr<Worker> worker(std::make_unique<Worker>(Core::make(std::move(options), std::move(launch))).release(),
                                 &Worker::destroy);
  worker->core_->start(*worker, std::move(extensions));
  Status met = worker->core_->meet();
  if (met.ok()) {
    logDebug(worker->self().name, "this worker has joined the job");
    return worker;
  }
  if (cluster::mayBeConsequence(met) && met.worker() != worker->self().name) cluster::tellLauncherOfGivingUp();
  worker->core_->leave("it could not join: " + met.message());
  raise(std::move(met));
}

// The last owner may be a handler or a callback, or what a call by a reference calls, on one of the threads that the
// worker's end waits for.
void Worker::destroy(Worker* worker) {
  std::unique_ptr<Worker> owner(worker);
  bool awaited = io::Executor::onPoolThread() || io::Serving::here() || base::Gate::insideHere();
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

std::vector<WorkerInfo> Worker::peers() const { return members(/*servers=*/false); }
std::vector<WorkerInfo> Worker::servers() const { return members(/*servers=*/true); }

std::vector<WorkerInfo> Worker::members(bool servers) const {
  std::vector<WorkerInfo> found;
  for (const int rank : core_->membership->ranks())
    if (core_->membership->isServer(rank) == servers) found.push_back(peer(rank));
  return found;
}

WorkerInfo Worker::waitForPeer(std::string_view name, Duration timeout) const {
  io::Executor::Blocking blocking;
  throwIfError(blocking.status());
  return valueOrThrow(core_->membership->awaitName(name, deadlineAfter(timeout)));
}

namespace {

memory::PoolCounters memoryCounters() {
  memory::BlockPool* pool = memory::BlockPool::ofProcess();
  return pool != nullptr ? pool->counters() : memory::PoolCounters();
}

}  // namespace

void trimMemory() {
  memory::WarmCache::ofProcess().trim();
  if (memory::BlockPool* pool = memory::BlockPool::ofProcess(); pool != nullptr) pool->trim();
}

Future<void> Worker::after(Duration delay) {
  throwIfError(engine().whetherHere());
  return engine().after(delay);
}

Metrics Worker::metrics() const {
  rpc::CallCounts calls = core_->engine->counts();
  rpc::References::Counts references = core_->engine->references().counts();
  return {calls.sent,
          calls.handled,
          calls.pending,
          calls.running,
          references.owned,
          references.forks,
          references.held,
          references.pending,
          calls.unansweredBytes,
          calls.bytesToAnswer,
          memoryCounters(),
          core_->memoryLimitBytes(),
          memory::WarmCache::ofProcess().counters(),
          core_->summations->counters()};
}

PeerChannels Worker::channelsTo(const WorkerRef& to) const {
  return valueOrThrow(core_->channelsTo(to.rank(*core_->membership)));
}

// The others do not wait for a server.
void Worker::checkMeets(const char* what) const {
  throwIfError(core_->engine->whetherHere());
  if (core_->launch.isServer())
    raise(failedPrecondition(std::string(what) + "() was called by " + self().name +
                             ", which has the rank of a summation server (TREADLE_SERVERS) and so meets nobody: start "
                             "`treadle server` with this rank"));
}

void Worker::barrier() {
  checkMeets("barrier");
  throwIfError(core_->coordinator->barrier(kNever));
}

std::map<std::string, std::vector<std::byte>> Worker::gather(rpc::Encoder& encoder) {
  checkMeets("allGather");
  if (!encoder.buffers().empty() || !encoder.forked().empty())
    raise(invalidArgument("allGather is for small values: no tensors, and no references"));
  std::map<std::string, std::vector<std::byte>> values;
  for (auto& one : valueOrThrow(core_->coordinator->gather(encoder.writer().bytes(), kNever)))
    values.emplace(peer(one.rank).name, std::move(one.bytes));
  return values;
}

// What the coordinator cannot know: what holds up this worker itself.
Status Worker::withOwnWork(const Status& status) const {
  std::string work = engine().whatIsLeft();
  if (status.code() != Code::kDeadlineExceeded || work.empty()) return status;
  return deadlineExceeded(status.message() + "; this worker itself " + work);
}

void Worker::mayEnd(const char* how) const {
  if (core_->process != ::getpid())
    raise(
        failedPrecondition("this worker belongs to the process that joined; a child of fork() has no part in the job"));
  if (io::Executor::onPoolThread())
    raise(
        failedPrecondition(std::string(how) + "() was called inside a handler; call it from the program's own thread"));
}

void Worker::shutdown(ShutdownOptions options) {
  mayEnd("shutdown");
  logDebug(self().name, "this worker is in its shutdown");
  if (Status done = core_->coordinator->shutdown(deadlineAfter(options.timeout)); !done.ok()) raise(withOwnWork(done));
  core_->leave("");
}

void Worker::leave(ShutdownOptions options) {
  mayEnd("leave");
  if (!core_->membership->open())
    raise(failedPrecondition("this job has a fixed size and ends for all at once: call shutdown()"));
  const TimePoint deadline = deadlineAfter(options.timeout);
  Status quiet = core_->coordinator->awaitQuiet([this] { return engine().whatIsLeft().empty(); }, deadline);
  if (!quiet.ok()) raise(withOwnWork(quiet.withContext("leaving the job")));
  core_->handOver();
  core_->leave("");
}

rpc::Engine& Worker::engine() const { return *core_->engine; }

group::GroupService& Worker::groups() { return *core_->groups; }
summation::Services& Worker::services() { return *core_->summations; }

const std::any& Worker::extensionState() const { return core_->extensionState; }

Worker& Worker::of(rpc::Engine& engine) { return *engine.worker(); }

}  // namespace treadle

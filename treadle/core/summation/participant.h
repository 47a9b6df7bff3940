#pragma once
// The part that this worker has in one summation service, from when it begins to meet the others to its end. Any
// thread; `check`, `take`, `lost`, `failedOn` and `fail` do not wait.

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "treadle/core/base/mutex.h"
#include "treadle/core/link/message.h"
#include "treadle/core/summation/pump.h"

namespace treadle::summation {

class Participant {
 public:
  // Called once, when the service has failed here for a reason that the others may not know; on a thread that must not
  // wait.
  using Report = std::function<void(const Status& why)>;

  // `machines`: the workers of the job that take part, those with data first.
  Participant(std::vector<WorkerInfo> machines, size_t workers, Machine self, PumpOptions options, Report report);

  const std::vector<WorkerInfo>& machines() const { return machines_; }
  std::vector<std::string> names() const;  // of them
  Machine self() const { return self_; }
  size_t workers() const { return workers_; }
  bool isWorker(Machine machine) const { return machine < workers_; }

  // ---- meeting: each machine dials the workers with lower numbers
  // FailedPrecondition: no connection of the worker with this rank in the job is awaited here.
  Status check(int rank) const;
  Status take(int rank, io::Stream stream);
  // Connects to the worker with this rank in the job, on the calling thread.
  using Dial = std::function<Result<io::Stream>(int rank)>;
  // Dials all that this machine dials. Where that fails, the reason may be a failure elsewhere: waits for that as long
  // as PumpOptions::patience says, and throws it rather than what `dial` said.
  void dialOthers(const Dial& dial, TimePoint deadline);
  // Returns when all that dial this machine have. Throws what `failedOn` and `lost` said; TimeoutError naming others.
  void awaitDialers(TimePoint deadline);
  // All connections are there. Throws ResourceError.
  void start(Declaration declaration);
  // This machine cannot take part: the others hear why, unless they know. Yields the first reason.
  Status giveUp(const Status& why);

  // ---- then
  Pump& pump() const;
  bool isUnderWay() const;  // it has started, and neither ended nor failed

  // The first worker is to hear, or says, that the service goes on without a server: the worker with this rank sent it.
  // DataLoss: what no machine sends.
  Status lostElsewhere(int rank, Machine server, const Status& why);
  Status moved(int rank, Machine server, std::vector<Machine> machines);
  // The job has lost the worker with this rank.
  void lost(int rank, const Status& why);
  // The service has failed on the worker with this rank, which says so.
  void failedOn(int rank, const Status& why);
  // The service goes on without the worker with this rank, a server.
  bool isWithout(int rank) const;
  // As Pump::fail, and as Pump::close. Later calls have no effect; `close` not on a thread that polls or reads.
  void fail(const Status& why) { fail(why, /*isKnownElsewhere=*/false); }
  void close(const Status& why);

 private:
  std::optional<Machine> machineOf(int rank) const;
  bool isServer(Machine machine) const { return !isWorker(machine) && machine < machines_.size(); }
  Status checkLocked(int rank) const TREADLE_REQUIRES(mutex_);
  bool dialsThis(Machine machine) const { return isWorker(self_) && machine > self_; }
  void dialed(Machine machine, io::Stream stream);
  Status causeOf(Status why, TimePoint deadline);
  std::vector<Machine> missing() const TREADLE_REQUIRES(mutex_);
  void fail(const Status& why, bool isKnownElsewhere);
  void report(const Status& why);
  void tellPump(std::function<void(Pump&)> tell) TREADLE_REQUIRES(mutex_);

  const std::vector<WorkerInfo> machines_;
  const size_t workers_;
  const Machine self_;
  const PumpOptions options_;
  const Report report_;
  mutable Mutex mutex_;
  CondVar changed_;
  std::map<Machine, io::Stream> streams_ TREADLE_GUARDED_BY(mutex_);
  bool isConnected_ TREADLE_GUARDED_BY(mutex_) = false;                         // to all
  std::vector<std::function<void(Pump&)>> forPump_ TREADLE_GUARDED_BY(mutex_);  // between then and the start
  Status failure_ TREADLE_GUARDED_BY(mutex_);
  bool isKnownElsewhere_ TREADLE_GUARDED_BY(mutex_) = false;  // why it failed
  std::unique_ptr<Pump> pump_;                                // set once, with the lock held
  Mutex closing_;                                             // who closes the pump
};

}  // namespace treadle::summation

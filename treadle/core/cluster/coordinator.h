#pragma once
// What all workers of a job do together once they have joined: the barrier, and the graceful end. Rank 0 counts; the
// others tell it and wait for its word, each no longer than every member lives. Owned by the worker. Any thread.

#include <functional>

#include "treadle/core/cluster/membership.h"
#include "treadle/core/cluster/shutdown_vote.h"

namespace treadle::cluster {

// The messages are in docs/protocol/liveness_and_shutdown.md. All of them are urgent ones, a few bytes each,
// so that this room never waits for a slow peer. Per barrier: one message from and one to each worker. Once a
// worker is lost every barrier and the shutdown fail with its name, as not all can come any more.
class Coordinator final : public MessageHandler {
 public:
  // `work` tells what this worker has under way (`idle` without regard to the shutdown). The reactor must not call back
  // any more when this object goes.
  Coordinator(Membership& membership, io::Reactor& reactor, std::function<WorkCount()> work);

  // Returns when all workers have called it equally often. PeerLost, DeadlineExceeded.
  Status barrier(TimePoint deadline);

  // Returns when all workers are here and no call is under way anywhere: the job is over. DeadlineExceeded tells what
  // is left.
  Status shutdown(TimePoint deadline);

  // `work` may say idle now. Costs nothing before this worker's shutdown and little in it: rank 0 is told when nothing
  // has been done for a while, as a server may be in its shutdown for as long as others train.
  void workDone();

  // Ends every wait, now and later, with `why`: this worker leaves.
  void close(const Status& why);

  void onMessage(int rank, const std::shared_ptr<link::Connection>& from, link::Message message) override;
  void onLost(int rank, const Status& why) override;

 private:
  enum class Kind : uint8_t { kBarrierEnter = 1, kBarrierLeave, kIdle, kProbe, kProbeAnswer, kFinish };

  void tell(int rank, Kind kind, uint64_t round, const WorkCount& count = {});
  void tellWork(Kind kind, uint64_t round);
  void tellWhenQuiet(const WorkCount& seen);
  void tellAll(Kind kind, uint64_t round);
  void act(ShutdownVote::Action action) TREADLE_REQUIRES(mutex_);
  void enterBarrier(int rank) TREADLE_REQUIRES(mutex_);
  std::string whatIsLeft() const TREADLE_REQUIRES(mutex_);
  Status waitFor(MutexLock& lock, const std::function<bool()>& done, TimePoint deadline, std::string_view what)
      TREADLE_REQUIRES(mutex_);

  Membership& membership_;
  io::Reactor& reactor_;
  const std::function<WorkCount()> work_;
  std::atomic<bool> inShutdown_ = false, waitsForQuiet_ = false;
  Mutex tellWorkMutex_;  // taken before all others

  mutable Mutex mutex_;
  CondVar changed_;
  uint64_t barriersEntered_ TREADLE_GUARDED_BY(mutex_) = 0, barriersLeft_ TREADLE_GUARDED_BY(mutex_) = 0;
  bool over_ TREADLE_GUARDED_BY(mutex_) = false;
  Status lost_ TREADLE_GUARDED_BY(mutex_);
  // Rank 0 only:
  std::vector<uint64_t> entered_ TREADLE_GUARDED_BY(mutex_);
  ShutdownVote vote_ TREADLE_GUARDED_BY(mutex_);
};

}  // namespace treadle::cluster

#pragma once
// What the workers of a job do together once they have joined: the barrier, values that all give to all, the graceful
// end, and what they tell each other of losses and newcomers. One of them, the keeper, counts and decides (keeper.h);
// the others tell it and wait for its word, each no longer than the keeper lives. Owned by the worker. Any thread.

#include <functional>

#include "treadle/core/cluster/keeper.h"

namespace treadle::cluster {

// The messages are in docs/protocol/liveness_and_shutdown.md. All of them are urgent ones, so that this room never
// waits for a slow peer. In a job of a fixed size every barrier and the shutdown fail with the name of the first worker
// that is lost and is no server, as not all can come any more; in an open job those fail that wait at that moment.
class Coordinator final : public MessageHandler {
 public:
  // `work` tells what this worker has under way (`idle` without regard to the shutdown). The reactor must not call back
  // any more when this object goes.
  Coordinator(Membership& membership, io::Reactor& reactor, std::function<WorkCount()> work);

  // Returns when all workers have called it equally often. PeerLost, DeadlineExceeded.
  Status barrier(TimePoint deadline);
  // The same, with what each gave, at most kMostGatheredBytes less one. By rank.
  Result<std::vector<GatheredValue>> gather(Bytes value, TimePoint deadline);

  // Returns when all workers are here and no call is under way anywhere: the job is over. DeadlineExceeded tells what
  // is left.
  Status shutdown(TimePoint deadline);
  // Returns when `done()`, which is asked again whenever this worker has nothing under way. DeadlineExceeded.
  Status awaitQuiet(const std::function<bool()>& done, TimePoint deadline);

  // `work` may say idle now. Costs nothing before this worker's shutdown and little in it: the keeper is told when
  // nothing has been done for a while, as a server may be in its shutdown for as long as others train.
  void workDone();

  // ---- open jobs
  Keeper& keeper() { return keeper_; }
  // Before the first message: which rank that is.
  void setKeeper(int rank) { keeperRank_.store(rank); }
  int keeperRank() const { return keeperRank_.load(); }
  // A worker comes: it will connect to this one, which is then to connect to it. And: become the keeper, who gives out
  // ranks from `nextRank` on, on a thread that may wait. Called on reading threads; set before the first message.
  struct Hooks {
    std::function<void(const RosterEntry& worker)> expect;
    std::function<void(int nextRank)> takeOver;
  };
  void setHooks(Hooks hooks) { hooks_ = std::move(hooks); }
  // This worker is connected to one that comes; or cannot connect to it.
  void connectedTo(int rank);
  void suspect(int rank, const Status& why);
  // This worker, the keeper, hands that over to another, which gives out ranks from `nextRank` on; nothing when it is
  // the only one. Returns when all have been told, no later than those are lost that are asked.
  void handOver(int nextRank);
  // This worker takes over: it decides from now on, and nobody hears of it yet. Then: it has, and all may be told;
  // waits until they are. False when the old keeper is lost before that: then nobody is it.
  void beginTakingOver();
  bool tookOver();

  // Ends every wait, now and later, with `why`: this worker leaves.
  void close(const Status& why);

  void onMessage(int rank, const std::shared_ptr<link::Connection>& from, link::Message message) override;
  void onLost(int rank, const Status& why) override;

 private:
  // What this worker waits for at the keeper.
  struct Gathered {
    std::vector<std::byte> value;
    std::optional<Result<std::vector<GatheredValue>>> outcome = {};
  };

  Status tell(int rank, Bytes message);
  Status tellKeeper(Bytes message) { return tell(keeperRank_.load(), message); }
  void tellWork(ClusterKind kind, uint64_t round, bool evenIfBusy = false);
  void tellWhenQuiet(const WorkCount& seen);
  Status onKeepersMessage(int from, ClusterMessage message);
  Status onAnyonesMessage(int from, ClusterMessage& message);
  void onOut(int from, const ClusterMessage& message);
  void onAdmit(const RosterEntry& worker);
  void onKeeper(int rank);
  void onDecided(uint64_t round, Result<std::vector<GatheredValue>> outcome);
  std::string whatIsLeft() const TREADLE_REQUIRES(mutex_);
  Status waitFor(MutexLock& lock, const std::function<bool()>& done, TimePoint deadline, std::string_view what)
      TREADLE_REQUIRES(mutex_);
  Result<std::vector<GatheredValue>> gatherAs(std::vector<std::byte> value, TimePoint deadline, std::string_view what);

  Membership& membership_;
  io::Reactor& reactor_;
  const std::function<WorkCount()> work_;
  Hooks hooks_;
  Keeper keeper_;
  std::atomic<int> keeperRank_ = 0;
  std::atomic<bool> inShutdown_ = false, waitsForQuiet_ = false, asksWhenIdle_ = false;
  Mutex tellWorkMutex_;  // taken before all others

  mutable Mutex mutex_;
  CondVar changed_;
  uint64_t lastGathered_ TREADLE_GUARDED_BY(mutex_) = 0;
  std::map<uint64_t, Gathered> gathered_ TREADLE_GUARDED_BY(mutex_);  // that threads of this worker wait for
  bool over_ TREADLE_GUARDED_BY(mutex_) = false, taken_ TREADLE_GUARDED_BY(mutex_) = false;
  // It was to be the keeper, and the old one was lost before all knew.
  bool declined_ TREADLE_GUARDED_BY(mutex_) = false;
  int successor_ TREADLE_GUARDED_BY(mutex_) = -1;      // who was asked to take over
  std::set<int> verdicts_ TREADLE_GUARDED_BY(mutex_);  // ranks that the keeper has said to be lost, or knows it
  std::optional<std::string> left_ TREADLE_GUARDED_BY(mutex_);
  uint64_t quiet_ TREADLE_GUARDED_BY(mutex_) = 0;  // how often this worker had nothing under way
  Status lost_ TREADLE_GUARDED_BY(mutex_);
};

}  // namespace treadle::cluster

#pragma once
// One worker of the job as this one sees it: its two connections, the memory that both share, and why it is lost once
// it is. Owned by the membership, for as long as that lives. Any thread, but `tick` on the reactor's alone.

#include <optional>
#include <string>
#include <vector>

#include "treadle/core/cluster/membership.h"

namespace treadle::cluster {

class Membership::Member final : public link::ConnectionSink {
 public:
  Member(Membership& owner, int rank);

  void onMessage(link::Connection& from, link::Message message) override;
  void onLeave(link::Connection&, std::string reason) override;
  void onClosed(link::Connection&, const Status& why) override;
  void onClosing(link::Connection&, const Status& why) override;
  void onRefusal(link::Connection&, const Status& why) override;
  Result<io::Stream> dialLane(link::Connection& from, TimePoint deadline) override;

  // It is coming: connections of a worker of this name are taken from now on. For jobs that workers join at run time.
  void expect(const std::string& name);
  // It has joined: it is found by its name.
  void welcome();
  // Starts the connection in its place, which must be free: one that is refused is never read from.
  Status attach(const WorkerInfo& info, io::Stream stream, link::Connection::Kind kind);
  Status attachLane(io::Stream stream, link::Purpose purpose);

  WorkerInfo info() const;
  Result<std::shared_ptr<link::Connection>> outgoing() const;
  bool here() const { return here_.load(); }  // it has joined and is not lost
  bool living() const;                        // it is here or coming
  // Both ways; why not, when it is lost before.
  Result<bool> connected() const;

  // Marks it lost; nothing when it was before. Where a connection was closing before, the reason of that is the cause.
  std::optional<Loss> lose(const Status& cause);
  std::optional<Loss> loss() const;
  // Once for each loss that deserves a line.
  void logLoss();
  std::vector<std::shared_ptr<link::Connection>> connections() const;
  // Of a lost one, when its connections are closed: their sockets, and what had come of a message, go with who uses
  // them last.
  void letGo();

  // Sends a heartbeat if nothing else was sent and `pulse` does not serve; how long nothing was heard of it.
  Duration tick(TimePoint now, std::optional<uint64_t> pulse);

 private:
  void setInfo(const WorkerInfo& info) TREADLE_REQUIRES(mutex_);

  Membership& owner_;
  const int rank_;
  const std::shared_ptr<link::PeerMemory> memory_;
  std::atomic<bool> here_;  // changed with the lock held
  mutable Mutex mutex_;
  WorkerInfo info_ TREADLE_GUARDED_BY(mutex_);
  bool oneEnded_ TREADLE_GUARDED_BY(mutex_) = false;  // of the two connections
  bool unlogged_ TREADLE_GUARDED_BY(mutex_) = false;  // it is lost, and the log does not have it yet
  bool expected_ TREADLE_GUARDED_BY(mutex_);
  std::shared_ptr<link::Connection> calls_ TREADLE_GUARDED_BY(mutex_), serving_ TREADLE_GUARDED_BY(mutex_);
  std::weak_ptr<link::Connection> oldCalls_ TREADLE_GUARDED_BY(mutex_), oldServing_ TREADLE_GUARDED_BY(mutex_);
  std::optional<std::string> farewell_ TREADLE_GUARDED_BY(mutex_);
  Status closing_ TREADLE_GUARDED_BY(mutex_);  // why the first of the two connections closes, once it does
  Status lost_ TREADLE_GUARDED_BY(mutex_), cause_ TREADLE_GUARDED_BY(mutex_);
  std::optional<uint64_t> lastBeats_;  // of its pulse; reactor's thread
  TimePoint lastBeat_{};               // likewise: when that had changed
};

}  // namespace treadle::cluster

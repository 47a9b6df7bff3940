#pragma once
// What one worker of a job decides for all: when a barrier is complete, when the job is over, who is lost, who has
// joined. Rank 0 is the keeper of a job; in an open job another one is when rank 0 leaves. Every worker has this
// object, and it is idle but at the keeper. Owned by the coordinator; any thread, and nothing here waits.
//
// Per barrier one message from and one to each worker, urgent ones of a few bytes.

#include <map>
#include <memory>
#include <set>

#include "treadle/core/cluster/gathering.h"
#include "treadle/core/cluster/membership.h"

namespace treadle::cluster {

// Who lets workers into an open job, for the keeper's news.
class Doorkeeper {
 public:
  virtual ~Doorkeeper() = default;
  virtual void onAdmitted(int rank, int by) = 0;   // `by` takes connections of `rank`
  virtual void onConnected(int rank, int by) = 0;  // `by` has connected to `rank`
  virtual void onLost(int rank) = 0;
};

class Keeper {
 public:
  explicit Keeper(Membership& membership) : membership_(membership) {}

  // This worker is the keeper from now on, of all who are present. `following`: they know it.
  void begin(bool following);
  void end();
  // Likewise, and for good: whoever takes this worker for the keeper is told that it is not. Those who did so already.
  std::vector<int> decline();
  bool active() const;

  // What the others say. A status that is not OK is for closing the connection: it broke the protocol.
  Status onMessage(int from, ClusterMessage message);
  void onLost(int rank);

  // Open jobs: tells all that a worker comes, or has come. They call nobody back.
  void announce(const RosterEntry& worker);
  void welcome(int rank);
  void setDoorkeeper(std::shared_ptr<Doorkeeper> doorkeeper);

  // Whom the shutdown, or a barrier, waits for: for messages to people.
  std::string whatIsLeft() const;

 private:
  Status tell(int rank, Bytes message) TREADLE_REQUIRES(mutex_);
  void tellAll(Bytes message) TREADLE_REQUIRES(mutex_);
  void tellComplete(const Gathering::Complete& complete) TREADLE_REQUIRES(mutex_);
  Status onEnter(int from, ClusterMessage& message) TREADLE_REQUIRES(mutex_);
  void goOnWithout(int rank, const Membership::Loss& loss) TREADLE_REQUIRES(mutex_);
  void onFollow(int from) TREADLE_REQUIRES(mutex_);
  void act(ShutdownVote::Action action) TREADLE_REQUIRES(mutex_);
  void onSuspect(int from, const ClusterMessage& message);
  std::string whatIsLeftLocked() const TREADLE_REQUIRES(mutex_);
  std::string namesOf(const std::vector<int>& ranks) const;

  Membership& membership_;
  mutable Mutex mutex_;
  bool active_ TREADLE_GUARDED_BY(mutex_) = false, declined_ TREADLE_GUARDED_BY(mutex_) = false;
  Gathering gathering_ TREADLE_GUARDED_BY(mutex_);
  ShutdownVote vote_ TREADLE_GUARDED_BY(mutex_);
  // What waits for a worker to know that this one is the keeper, by rank.
  std::map<int, std::vector<std::vector<std::byte>>> unsent_ TREADLE_GUARDED_BY(mutex_);
  std::shared_ptr<Doorkeeper> doorkeeper_ TREADLE_GUARDED_BY(mutex_);
};

}  // namespace treadle::cluster

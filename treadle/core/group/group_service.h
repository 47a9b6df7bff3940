#pragma once
// All process groups of one worker: makes them, and brings messages to them. One per worker, which owns it; a group's
// state stays here until the worker ends, also when nobody holds a handle any more.
//
// What comes for a group that this worker has not made yet is kept until it does, kEarlyBytes and kEarlyMessages per
// sender at most; the group whose message is past that fails, on all its members, with ResourceExhausted.
//
// Any thread may call anything; `onMessage` and `onLost` come from reading threads and do not wait.

#include <functional>
#include <map>
#include <unordered_map>

#include "treadle/core/group/group_core.h"

namespace treadle::group {

inline constexpr size_t kEarlyBytes = size_t{64} << 20;
inline constexpr size_t kEarlyMessages = 65'536;

class GroupService final : public cluster::MessageHandler {
 public:
  // All three must outlive it, and no handler may run any more when it goes: the executor has been stopped by then.
  GroupService(cluster::Membership& membership, io::Reactor& reactor, io::Executor& executor);
  ~GroupService() override;

  // What links cost, by which the groups that are made from now on choose algorithms, and where the worker with a rank
  // in the job runs: a text for its host. Equal on all workers. Before, all workers are on one host, with the defaults.
  using HostOf = std::function<std::string(int rank)>;
  void setCosts(const cluster::Costs& costs, HostOf hostOf);
  cluster::Costs costs() const;
  // On which hosts these workers are. NotFound: nobody has a name; InvalidArgument: a name twice, or none.
  Result<Placement> placementOf(const std::vector<std::string>& members) const;

  // ProcessGroup::make (group.h), as a Result. InvalidArgument: a name twice, this worker not among them, bad options.
  // NotFound: nobody has a name.
  Result<std::shared_ptr<GroupCore>> make(const std::vector<std::string>& members, GroupOptions options);

  // InvalidArgument: one has the rank of a summation server, which takes part in no group of a program: the others
  // would wait for it in vain.
  Status checkNoServers(const std::vector<std::string>& members) const;

  void onMessage(int rank, const std::shared_ptr<link::Connection>& from, link::Message message) override;
  void onLost(int rank, const Status& why) override;

  // Every operation of every group fails with `why`, the later ones too. Returns when none touches its memory. Waits,
  // so not on a thread that polls or reads.
  void close(const Status& why);

 private:
  struct Early {
    int rank;
    Message message;
    size_t sizeBytes;
  };
  struct Use {
    size_t sizeBytes = 0, messages = 0;
    bool exceeded = false;  // once; it has been logged
  };

  Result<std::vector<WorkerInfo>> infosOf(const std::vector<std::string>& members) const;
  Placement placementLocked(const std::vector<WorkerInfo>& members) const TREADLE_REQUIRES(mutex_);
  // Ranks to cut off for what they sent.
  using Violations = std::vector<std::pair<int, Status>>;
  static void handOver(std::vector<Early> early, GroupCore& group, Violations& violations);
  std::vector<Early> takeEarly(uint64_t id) TREADLE_REQUIRES(mutex_);
  // False when it is too much.
  bool keep(int rank, Message message) TREADLE_REQUIRES(mutex_);
  void refuse(int rank, uint64_t group);
  void send(int rank, uint64_t group, Message message);
  std::vector<std::shared_ptr<GroupCore>> groups() const;

  cluster::Membership& membership_;
  const GroupCore::Shared shared_;

  mutable Mutex mutex_;
  Status closed_ TREADLE_GUARDED_BY(mutex_);
  cluster::Costs costs_ TREADLE_GUARDED_BY(mutex_);
  HostOf hostOf_ TREADLE_GUARDED_BY(mutex_) = [](int) { return std::string(); };
  std::unordered_map<uint64_t, std::shared_ptr<GroupCore>> groups_ TREADLE_GUARDED_BY(mutex_);
  std::map<std::string, uint64_t> made_ TREADLE_GUARDED_BY(mutex_);  // how often, by name and members
  std::unordered_map<uint64_t, std::vector<Early>> early_ TREADLE_GUARDED_BY(mutex_);
  std::map<int, Use> earlyUse_ TREADLE_GUARDED_BY(mutex_);  // by rank
};

}  // namespace treadle::group

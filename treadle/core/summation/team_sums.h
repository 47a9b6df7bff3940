#pragma once
// The sums of a worker that is in a team (SummationOptions::teams). Of each tensor the team sums its data first, then
// its first worker exchanges that sum with the other teams, and then all of the team get the result. Each of these
// stages is asynchronous, and many tensors may be in each of them at a time.
//
// Within the team both ways go through pushPull, which matches tensors by their names and not by the order of calls. To
// pass on a result, the first worker gives its bits as integers and the others zeros, so all get the same bits.
//
// A worker that leaves reports to the others how many sums it has begun, so none waits for data that never comes. Any
// thread may call anything; only `close` waits, and it needs no thread of the executor.

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "treadle/core/base/mutex.h"
#include "treadle/core/group/group.h"
#include "treadle/core/io/future.h"
#include "treadle/core/summation/declaration.h"
#include "treadle/core/summation/job.h"
#include "treadle/core/summation/participant.h"
#include "treadle/core/summation/service.h"
#include "treadle/core/summation/services.h"

namespace treadle::summation {

// Two groups of the team, as a tensor is in both stages under its name.
struct TeamGroups {
  group::ProcessGroup sums, results;

  // `options`: of the service, as all workers give them. As ProcessGroup::make.
  static TeamGroups make(Job& job, const std::vector<std::string>& team, const SummationOptions& options,
                         Duration timeout);
  bool isFirst() const { return sums.rank() == 0; }
  // Both fail, on all workers of the team.
  void abandon(const Status& why) const;
};

class TeamSums : public std::enable_shared_from_this<TeamSums> {
 public:
  // `outside`: the part of the team's first worker in the service of all first workers; null on the others.
  static std::shared_ptr<TeamSums> make(TeamGroups groups, Declaration declaration,
                                        std::shared_ptr<Participant> outside, const Services& services);
  ~TeamSums();

  // As those of Pump.
  Future<void> sum(size_t tensor, MutableBytes data);
  void leave();
  Future<void> ended() const { return ended_.future(); }

  // The service fails on all machines, unless it has ended.
  void fail(const Status& why);
  // As `fail`; returns when nothing here touches the data of sums any more.
  void close(const Status& why);

 private:
  struct UnderWay {
    size_t tensor;
    MutableBytes data;
    Promise<void> promise;
    Status failure;         // that there is no memory, until it has another one
    bool hasEnded = false;  // of the team's lock
  };
  using Sum = std::shared_ptr<UnderWay>;
  using Stage = void (TeamSums::*)(const Sum&);

  TeamSums(TeamGroups groups, Declaration declaration, std::shared_ptr<Participant> outside, const Services& services);
  void watch();
  void awaitLeave(int member);
  void failWith(const Status& why, const Status& forTeam);

  // The stages of a sum, on any thread; none waits.
  void whenReady(const Sum& sum, const Future<void>& ready, Stage next);
  void begin(const Sum& sum, Stage stage);
  void addUp(const Sum& sum);
  void exchange(const Sum& sum);
  void clear(const Sum& sum);
  void passOn(const Sum& sum);
  void succeed(const Sum& sum) { end(sum, Status()); }
  void end(const Sum& sum, const Status& how);
  void failOver(const Sum& sum, const Status& how);

  void reportLeave();
  void left(int member, uint64_t sums);
  Status waitsInVain() const TREADLE_REQUIRES(mutex_);
  void leaveOthers();
  void endTogether();
  std::string nameOf(int member) const;

  const TeamGroups groups_;
  const Declaration declaration_;
  std::shared_ptr<Participant> outside_;
  const std::shared_ptr<Services::Keeper> keeper_;
  const io::ContinueOn continueOn_;
  Promise<void> ended_;

  Mutex mutex_;
  CondVar changed_;
  std::vector<bool> isUnderWay_ TREADLE_GUARDED_BY(mutex_);  // by tensor
  // How many of them; and of sums that may still touch their data, or whose futures are not ready.
  size_t taken_ TREADLE_GUARDED_BY(mutex_) = 0, underWay_ TREADLE_GUARDED_BY(mutex_) = 0;
  std::set<Sum> resting_ TREADLE_GUARDED_BY(mutex_);                      // those of them that wait for the executor
  uint64_t begun_ TREADLE_GUARDED_BY(mutex_) = 0;                         // sums
  std::vector<std::optional<uint64_t>> left_ TREADLE_GUARDED_BY(mutex_);  // by member: after so many sums
  bool leaves_ TREADLE_GUARDED_BY(mutex_) = false, hasEnded_ TREADLE_GUARDED_BY(mutex_) = false;
  Status failure_ TREADLE_GUARDED_BY(mutex_);
};

}  // namespace treadle::summation

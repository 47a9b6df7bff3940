// Budget of a tensor: what pushPull costs, twice, and on all workers but the first a task of the executor.

#include "treadle/core/summation/team_sums.h"

#include <algorithm>
#include <cstdio>
#include <new>
#include <utility>

#include "treadle/core/base/error.h"
#include "treadle/core/base/hash.h"
#include "treadle/core/group/group_core.h"
#include "treadle/core/io/serving.h"

namespace treadle::summation {

using group::DataType;
using group::ProcessGroup;

namespace {

// Integers of the type's alignment: of each half of a complex number.
DataType bitsOf(DataType type) {
  switch (type) {
    case DataType::kComplex64: return DataType::kUint32;
    case DataType::kComplex128: return DataType::kUint64;
    default: break;
  }
  switch (sizeOf(type)) {
    case 1: return DataType::kUint8;
    case 2: return DataType::kUint16;
    case 4: return DataType::kUint32;
    default: return DataType::kUint64;
  }
}

Future<void> pushPullOf(const ProcessGroup& group, size_t tensor, MutableBytes data, DataType type) {
  return pushPull(group, "tensor " + std::to_string(tensor), data.data(), data.size() / sizeOf(type), type,
                  {.timeoutUntilMatched = true});
}

// Workers that list other machines make another service.
std::string hashOf(const SummationOptions& options) {
  std::string names;
  for (const auto* list : {&options.workers, &options.servers}) {
    for (const std::string& name : *list) names += name + '\n';
    names += '\n';
  }
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(base::fnv1a(names)));
  return text;
}

// Calls `f` with how the future has ended, on the thread where it does. It always ends, and the state with it.
template <class F>
void onceReady(const Future<void>& future, F f) {
  sharedStateOf(future)->onReady([state = sharedStateOf(future), f = std::move(f)]() mutable {
    f(state->result().ok() ? Status() : state->result().status());
  });
}

}  // namespace

TeamGroups TeamGroups::make(Job& job, const std::vector<std::string>& team, const SummationOptions& options,
                            Duration timeout) {
  const std::string of = " of summation service '" + options.name + "' " + hashOf(options);
  ProcessGroup sums =
      ProcessGroup::make(job, team, {.name = "team" + of, .timeout = timeout, .sumOrder = group::SumOrder::kRank});
  // No stall reports: while the first worker waits for other teams, the others wait for it here, and nobody is late. No
  // timeout: how long it takes depends on the other teams.
  ProcessGroup results =
      ProcessGroup::make(job, team, {.name = "results" + of, .timeout = kNoTimeout, .stallReport = kNoTimeout});
  return {std::move(sums), std::move(results)};
}

void TeamGroups::abandon(const Status& why) const {
  sums.core().abandon(why);
  results.core().abandon(why);
}

TeamSums::TeamSums(TeamGroups groups, Declaration declaration, std::shared_ptr<Participant> outside,
                   const Services& services)
    : groups_(std::move(groups)),
      declaration_(std::move(declaration)),
      outside_(std::move(outside)),
      keeper_(services.keeper()),
      continueOn_(services.continueOn()),
      ended_(continueOn_),
      isUnderWay_(declaration_.tensors.size()),
      left_(static_cast<size_t>(groups_.sums.size())) {
  sharedStateOf(ended_.future())->endsByItself = true;
}

std::shared_ptr<TeamSums> TeamSums::make(TeamGroups groups, Declaration declaration,
                                         std::shared_ptr<Participant> outside, const Services& services) {
  std::shared_ptr<TeamSums> made(new TeamSums(std::move(groups), std::move(declaration), std::move(outside), services));
  made->watch();
  return made;
}

// The last reference may be that of a thread which must not wait for the pump's, or is the pump's.
TeamSums::~TeamSums() {
  if (outside_) keeper_->keep(std::move(outside_));
}

std::string TeamSums::nameOf(int member) const { return groups_.sums.core().link().member(member).name; }

// Whoever of the team fails has said so to all of it; what fails outside this worker reports.
void TeamSums::watch() {
  const auto failedInTeam = [weak = weak_from_this()](const Status& how) {
    const auto self = weak.lock();
    if (self && !how.ok()) self->failWith(how, how);
  };
  onceReady(groups_.sums.core().ended(), failedInTeam);
  onceReady(groups_.results.core().ended(), failedInTeam);
  for (int member = 0; member < groups_.sums.size(); ++member)
    if (member != groups_.sums.rank()) awaitLeave(member);
  if (!outside_) return;
  onceReady(outside_->pump().ended(), [weak = weak_from_this()](const Status& how) {
    const auto self = weak.lock();
    if (self && !how.ok()) self->fail(how);
  });
}

void TeamSums::awaitLeave(int member) {
  const auto sums = std::make_shared<uint64_t>();
  onceReady(recv(groups_.results, std::span(sums.get(), 1), member),
            [weak = weak_from_this(), member, sums](const Status& how) {
              const auto self = weak.lock();
              if (self) how.ok() ? self->left(member, *sums) : self->fail(how);
            });
}

Future<void> TeamSums::sum(size_t tensor, MutableBytes data) {
  throwIfError(declaration_.checkData(tensor, data));
  const auto sum = std::make_shared<UnderWay>(
      UnderWay{tensor, data, Promise<void>(continueOn_), resourceExhausted("there is no memory for a sum of a team")});
  Future<void> future = sum->promise.future();
  sharedStateOf(future)->endsByItself = true;
  {
    MutexLock lock(mutex_);
    if (leaves_) raise(failedPrecondition("this worker has left the summation service and makes no more sums"));
    if (!failure_.ok()) {
      sum->promise.fail(failure_);
      return future;
    }
    if (isUnderWay_[tensor])
      raise(failedPrecondition("a sum of " + declaration_.textOf(tensor) + " is under way; wait for its future first"));
    if (taken_ == kMostSumsInTeam)
      raise(resourceExhausted(std::to_string(kMostSumsInTeam) +
                              " sums of a worker in a team are under way, which is the most; wait for some first"));
    isUnderWay_[tensor] = true;
    ++taken_;
    ++underWay_;
    ++begun_;
  }
  begin(sum, &TeamSums::addUp);
  return future;
}

void TeamSums::whenReady(const Sum& sum, const Future<void>& ready, Stage next) {
  onceReady(ready, [self = shared_from_this(), sum, next](const Status& how) {
    how.ok() ? self->begin(sum, next) : self->end(sum, how);
  });
}

void TeamSums::begin(const Sum& sum, Stage stage) {
  try {
    (this->*stage)(sum);
  } catch (...) {
    end(sum, statusOfCurrentException("a sum of a team"));
  }
}

void TeamSums::addUp(const Sum& sum) {
  Status vain;
  {
    MutexLock lock(mutex_);
    vain = waitsInVain();
  }
  throwIfError(vain);
  const DataType type = declaration_.tensors[sum->tensor].type;
  whenReady(sum, pushPullOf(groups_.sums, sum->tensor, sum->data, type), &TeamSums::exchange);
}

// The data is the team's sum. To fill it takes too long for a thread that polls or reads.
void TeamSums::exchange(const Sum& sum) {
  if (outside_) return whenReady(sum, outside_->pump().sum(sum->tensor, sum->data), &TeamSums::passOn);
  Status failure;
  {
    MutexLock lock(mutex_);
    failure = failure_;
    if (failure.ok()) resting_.insert(sum);
  }
  if (!failure.ok()) return end(sum, failure);
  continueOn_.post([self = shared_from_this(), sum] { self->begin(sum, &TeamSums::clear); });
}

void TeamSums::clear(const Sum& sum) {
  {
    MutexLock lock(mutex_);
    if (resting_.erase(sum) == 0) return;  // it has ended
  }
  std::fill(sum->data.begin(), sum->data.end(), std::byte{0});
  passOn(sum);
}

// The first worker's data is the result, and the others' data is zeros.
void TeamSums::passOn(const Sum& sum) {
  const DataType bits = bitsOf(declaration_.tensors[sum->tensor].type);
  whenReady(sum, pushPullOf(groups_.results, sum->tensor, sum->data, bits), &TeamSums::succeed);
}

// A continuation may drop the service. Its destructor must not wait for this sum, which has not ended yet. The sum ends
// also without memory.
void TeamSums::end(const Sum& sum, const Status& how) {
  const io::Serving mustNotWait;
  {
    MutexLock lock(mutex_);
    if (std::exchange(sum->hasEnded, true)) return;
  }
  if (!how.ok()) failOver(sum, how);
  {
    MutexLock lock(mutex_);
    isUnderWay_[sum->tensor] = false;  // a program may begin another one when the future is ready
    --taken_;
  }
  try {
    how.ok() ? sum->promise.set() : sum->promise.fail(std::move(sum->failure));
  } catch (...) {  // of what runs when the future is ready, as it is by then
  }
  {
    MutexLock lock(mutex_);
    --underWay_;
    changed_.notifyAll();
    if (underWay_ > 0 || !leaves_ || !failure_.ok()) return;
  }
  reportLeave();
}

void TeamSums::failOver(const Sum& sum, const Status& how) try {
  fail(how.withContext("a team's sum of " + declaration_.textOf(sum->tensor)));
  MutexLock lock(mutex_);
  sum->failure = failure_;
} catch (const std::bad_alloc&) {  // then the sum's failure stays as it is
}

void TeamSums::leave() {
  {
    MutexLock lock(mutex_);
    if (leaves_) return;
    leaves_ = true;
    if (underWay_ > 0 || !failure_.ok()) return;
  }
  reportLeave();
}

void TeamSums::reportLeave() {
  const auto sums = std::make_shared<uint64_t>();
  {
    MutexLock lock(mutex_);
    *sums = begun_;
  }
  try {
    for (int member = 0; member < groups_.results.size(); ++member)
      if (member != groups_.results.rank())
        onceReady(send(groups_.results, std::span(sums.get(), 1), member), [sums](const Status&) {});
    left(groups_.results.rank(), *sums);
  } catch (...) {
    fail(statusOfCurrentException("leaving a summation service"));
  }
}

void TeamSums::left(int member, uint64_t sums) {
  Status vain;
  bool haveAllLeft = false;
  {
    MutexLock lock(mutex_);
    left_[static_cast<size_t>(member)] = sums;
    vain = waitsInVain();
    haveAllLeft = std::ranges::all_of(left_, [](const auto& one) { return one.has_value(); });
  }
  if (!vain.ok()) return fail(vain);
  if (haveAllLeft) leaveOthers();
}

// For a worker that left after fewer sums than this one has begun.
Status TeamSums::waitsInVain() const {
  if (underWay_ == 0) return {};
  const auto before = std::ranges::find_if(left_, [begun = begun_](const auto& sums) { return sums && *sums < begun; });
  if (before == left_.end()) return {};
  const std::string name = nameOf(static_cast<int>(before - left_.begin()));
  return failedPrecondition(name + " has left the summation service, and " + nameOf(groups_.sums.rank()) +
                            " waits for its data (sums begun: " + std::to_string(**before) + " and " +
                            std::to_string(begun_) + ")")
      .withWorker(name);
}

// The first worker leaves the other teams when all of this one have left, and these stay until it has seen the end.
void TeamSums::leaveOthers() {
  if (!outside_) return endTogether();
  outside_->pump().leave();
  onceReady(outside_->pump().ended(), [self = shared_from_this()](const Status& how) {
    if (how.ok()) self->endTogether();
  });
}

void TeamSums::endTogether() try {
  onceReady(barrier(groups_.results), [self = shared_from_this()](const Status& how) {
    {
      MutexLock lock(self->mutex_);
      self->hasEnded_ = how.ok() && self->failure_.ok();
      if (!self->hasEnded_) return;
    }
    self->ended_.set();
  });
} catch (...) {
  fail(statusOfCurrentException("leaving a summation service"));
}

void TeamSums::fail(const Status& why) { failWith(why, why.withContext(nameOf(groups_.sums.rank()) + " reports")); }

// As in `end`, a continuation may drop the service.
void TeamSums::failWith(const Status& why, const Status& forTeam) {
  const io::Serving mustNotWait;
  std::set<Sum> resting;
  {
    MutexLock lock(mutex_);
    if (hasEnded_ || !failure_.ok()) return;
    failure_ = why;
    resting.swap(resting_);
  }
  try {
    groups_.abandon(forTeam);
    if (outside_) outside_->fail(why);
  } catch (const std::bad_alloc&) {  // then the others notice that this worker makes no more sums
  }
  for (const Sum& sum : resting) end(sum, why);
  ended_.fail(why);
}

void TeamSums::close(const Status& why) {
  fail(why);
  io::Executor::Blocking blocking;
  MutexLock lock(mutex_);
  while (underWay_ > 0) changed_.wait(lock);
}

}  // namespace treadle::summation

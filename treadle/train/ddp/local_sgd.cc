#include "treadle/train/ddp/local_sgd.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "treadle/core/base/error.h"
#include "treadle/train/ddp/distributed_data_parallel.h"
#include "treadle/train/ddp/error_feedback_hook.h"
#include "treadle/train/ddp/first_difference.h"
#include "treadle/train/ddp/member_in_words.h"
#include "treadle/train/ddp/of_all_ranks.h"
#include "treadle/train/ddp/reducer.h"
#include "treadle/train/ddp/replica_mean.h"
#include "treadle/train/ddp/sync_batch_norm.h"

namespace treadle::ddp {
namespace {

// What a rank reports of itself before each mean.
struct TrainingReport {
  int64_t steps = 0;
  // Flags, without bytes in between that nobody has written.
  int64_t hasFailed = 0;
  int64_t isDone = 0;      // it has no batch left
  int64_t hasTrained = 0;  // by its own gradients since the last mean
};

// Whatever fails here between the ranks' reports and the mean, this rank does not know what the others have begun.
template <class F>
auto orAbandon(const ProcessGroup& group, F function) try {
  return function();
} catch (...) {
  const Status why = statusOfCurrentException("LocalSgd");
  abandonGroup(group, "could not average its parameters (" + why.message() + ")", why);
  throw;
}

void checkHasAllMembers(const ProcessGroup& larger, const ProcessGroup& group) {
  const std::vector<std::string> all = larger.members();
  for (const std::string& member : group.members())
    if (std::find(all.begin(), all.end(), member) == all.end())
      raise(invalidArgument("LocalSgdOptions::group has no worker '" + member +
                            "', which is a member of the group of the DistributedDataParallel: give it all of these"));
}

void checkNumbers(const LocalSgdOptions& options) {
  if (options.period < 1)
    raise(invalidArgument("LocalSgdOptions::period is " + std::to_string(options.period) + ", and has to be positive"));
  if (options.startAfter < 0)
    raise(invalidArgument("LocalSgdOptions::startAfter is " + std::to_string(options.startAfter) +
                          ", and has to be a number of steps"));
}

// A rank that trains alone has no use for them.
void checkTrainsAlone(const DdpOptions& ddp, const torch::nn::Module& module) {
  refuseSyncBatchNorm(module, "localSgd() without LocalSgdOptions::group");
  if (ddp.optimizerInBackward)
    raise(invalidArgument(
        "localSgd() cannot be used with DdpOptions::optimizerInBackward, which steps in averaged passes alone: step "
        "the optimizer after backward, or give LocalSgdOptions::group"));
  if (std::dynamic_pointer_cast<ErrorFeedbackHook>(ddp.hook))
    raise(invalidArgument(
        "localSgd() cannot be used with a hook that holds gradients back, as no later pass would send them: use no "
        "hook or a CastHook, or give LocalSgdOptions::group"));
  if (ddp.divisor == Divisor::kSum || ddp.divisor == Divisor::kWeights)
    raise(invalidArgument(std::string("localSgd() cannot be used with the divisor ") + nameOf(ddp.divisor) +
                          ", as a rank alone would make steps of another length: use kWorldSize or kActiveRanks"));
}

std::vector<std::string> settingsOfLocalSgd(const LocalSgdOptions& options, const DdpOptions& ddp,
                                            const BucketLimits& limits, const Result<group::Algorithm>& algorithm) {
  return {"LocalSgdOptions::period " + std::to_string(options.period),
          "LocalSgdOptions::startAfter " + std::to_string(options.startAfter),
          std::string("DdpOptions::buffers ") + nameOf(ddp.buffers), "DdpOptions::" + textOf(limits),
          textOf(algorithm)};
}

// The same on all ranks.
Status checkTrained(const std::vector<TrainingReport>& reports, const ProcessGroup& group) {
  std::optional<size_t> first;
  for (size_t rank = 0; rank < reports.size(); ++rank) {
    if (reports[rank].hasFailed != 0)
      return cancelled("the mean of the parameters failed on " + memberInWords(rank, group) + ": see the error there")
          .withWorker(group.members()[rank]);
    if (reports[rank].isDone != 0) continue;
    if (!first) first = rank;
    if (reports[rank].steps != reports[*first].steps)
      return failedPrecondition(memberInWords(*first, group) + " has made " + std::to_string(reports[*first].steps) +
                                " steps of LocalSgd, and " + memberInWords(rank, group) + " " +
                                std::to_string(reports[rank].steps) +
                                ": call step() after each step, and average() after the same ones, on all ranks");
  }
  return {};
}

Shares sharesOfTrained(const std::vector<TrainingReport>& reports) {
  std::vector<RankReport> active;
  for (const TrainingReport& report : reports) active.push_back({.active = report.hasTrained != 0});
  return valueOrThrow(sharesOf(Divisor::kActiveRanks, active));
}

}  // namespace

LocalSgd::LocalSgd(std::shared_ptr<Reducer> reducer, const torch::nn::Module& module, const ProcessGroup& group,
                   const DdpOptions& ddp, LocalSgdOptions options)
    : options_(std::move(options)),
      group_(options_.group.valid() ? options_.group : group),
      isWide_(options_.group.valid()) {
  checkNumbers(options_);
  isWide_ ? checkHasAllMembers(group_, group) : checkTrainsAlone(ddp, module);
  reducer->checkAverages("localSgd()");
  reducer->checkBetweenPasses("localSgd()");
  claim_ = reducer->claimForLocalSgd();
  const BucketLimits limits = limitsFor(group_, ddp.buckets);
  mean_ = std::make_unique<ReplicaMean>(module, ddp.buffers, limits);
  const Result<group::Algorithm> algorithm = mean_->algorithm(group_);
  checkStructure(module, group_, settingsOfLocalSgd(options_, ddp, limits, algorithm));
  throwIfError(algorithm.status());
  if (isWide_) startValues(module, group_, ddp.start);
  reducer_ = std::move(reducer);
  if (options_.startAfter == 0) goLocal();
}

LocalSgd::LocalSgd(LocalSgd&&) noexcept = default;

LocalSgd::~LocalSgd() {
  if (!reducer_) return;
  try {
    abandonGroup(group_, "has left a LocalSgd before finish() had ended well", reducer_->lastFailure());
  } catch (...) {}  // a destructor must not throw; the others' operations end at their time limit
  leave();
}

void LocalSgd::leave() {
  if (isLocal_) reducer_->resume();
  claim_.reset();
  reducer_.reset();
}

const std::vector<at::Tensor>& LocalSgd::parameters() const { return mean_->parameters(); }

void LocalSgd::addState(std::unique_ptr<OptimizerTensors> optimizer) {
  checkMayAverage("LocalSgd::averageState()");
  if (steps_ > 0) raise(failedPrecondition("LocalSgd::averageState() is called before the first step"));
  if (auto difference = firstDifference(group_, ReplicaMean::linesOf(*optimizer)))
    raise(invalidArgument("the optimizers of LocalSgd::averageState() are not alike: " + *difference));
  throwIfError(mean_->algorithm(group_, optimizer.get()).status());
  mean_->add(std::move(optimizer));
}

void LocalSgd::checkMayAverage(const char* function) const {
  if (!reducer_) raise(failedPrecondition(std::string(function) + " is called before finish(), which has ended"));
  reducer_->checkBetweenPasses(function);
}

// Ranks are not in step from here on.
void LocalSgd::goLocal() {
  if (isWide_) return;
  reducer_->suspend();
  isLocal_ = true;
}

bool LocalSgd::isDue() const {
  if (steps_ <= options_.startAfter) return isWide_;
  return (steps_ - options_.startAfter) % options_.period == 0;
}

void LocalSgd::step() {
  checkMayAverage("LocalSgd::step()");
  ++steps_;
  if (isLocal_ || isWide_) {
    hasTrained_ = true;
    reducer_->trainsAlone();
  }
  if (steps_ == options_.startAfter) goLocal();
  if (isDue()) makeMean(/*isDone=*/false);
}

void LocalSgd::average() {
  checkMayAverage("LocalSgd::average()");
  makeMean(/*isDone=*/false);
}

void LocalSgd::finish() {
  if (!reducer_) return;
  checkMayAverage("LocalSgd::finish()");
  while (!makeMean(/*isDone=*/true)) {}
  leave();
}

// Returns whether no rank has a batch left.
bool LocalSgd::makeMean(bool isDone) {
  const Status unchanged = mean_->checkUnchanged();
  const TrainingReport own = {
      .steps = steps_, .hasFailed = !unchanged.ok(), .isDone = isDone, .hasTrained = hasTrained_};
  const std::vector<TrainingReport> reports = orAbandon(group_, [&] { return ofAllRanks(group_, own); });
  throwIfError(unchanged);
  throwIfError(checkTrained(reports, group_));
  const Shares shares = sharesOfTrained(reports);
  if (!shares.isEmpty) orAbandon(group_, [&] { mean_->make(group_, shares); });
  hasTrained_ = false;
  return std::all_of(reports.begin(), reports.end(), [](const TrainingReport& one) { return one.isDone != 0; });
}

}  // namespace treadle::ddp

#include "treadle/train/ddp/rebind.h"

#include <algorithm>
#include <utility>

#include "treadle/core/base/error.h"
#include "treadle/train/ddp/distributed_data_parallel.h"
#include "treadle/train/ddp/of_all_ranks.h"
#include "treadle/train/ddp/reducer.h"

namespace treadle::ddp {
namespace {

// The rank that has the values for all, the same on all ranks.
int sourceOf(const std::vector<Progress>& ranks) {
  const auto whole = std::find_if(ranks.begin(), ranks.end(), [](const Progress& one) { return one.isTorn == 0; });
  if (whole == ranks.end())
    raise(failedPrecondition(
        "rebind finds no rank with whole parameters: the pass has failed on all of them between steps of "
        "DdpOptions::optimizerInBackward; load the last checkpoint into a new DistributedDataParallel on all ranks"));
  return static_cast<int>(whole - ranks.begin());
}

bool areAlike(const std::vector<Progress>& ranks) {
  return std::all_of(ranks.begin(), ranks.end(),
                     [&](const Progress& one) { return one == ranks.front() && !one.isTorn && !one.hasTrainedAlone; });
}

// Where all ranks are from now on. The renewal counts only on ranks on which rebind ends well: if it fails on another
// one, that one's optimizer is not renewed, and the next rebind notices.
Progress after(const std::vector<Progress>& ranks) {
  Progress most;
  for (const Progress& one : ranks) {
    most.averages = std::max(most.averages, one.averages);
    most.renewals = std::max(most.renewals, one.renewals);
  }
  if (!areAlike(ranks)) ++most.renewals;
  return most;
}

}  // namespace

void Reducer::checkRebind() {
  MutexLock lock(mutex_);
  checkNoPass("rebind");
  if (suspended_ > 0 || join_.isOpen() || hasLocalSgd_)
    raise(failedPrecondition(
        "rebind cannot be called while a guard of noSync() or join(), or a LocalSgd, lives: leave its scope before"));
}

Progress Reducer::progress() {
  MutexLock lock(mutex_);
  return progress_;
}

void Reducer::goOn(const Progress& progress) {
  MutexLock lock(mutex_);
  progress_ = progress;
  clearGradients();
  for (const at::Tensor& parameter : list_.frozen()) parameter.mutable_grad() = at::Tensor();
}

// What can fail on one rank alone comes before anything changes there, and the values come last. A hook may have learnt
// from the new group how many ranks there are, so it is bound to the old one again.
bool rebind(std::shared_ptr<Reducer>& reducer, const torch::nn::Module& module, const DdpOptions& options,
            const ProcessGroup& before, const ProcessGroup& group) {
  reducer->checkRebind();
  try {
    reducer->awaitAverages();
  } catch (...) {}             // its progress shows it
  bool doOthersCount = false;  // on this rank, unless what fails now fails on all ranks alike
  try {
    compareReplicas(module, group, options, /*isRebind=*/true);
    doOthersCount = true;
    const std::vector<Progress> ranks = ofAllRanks(group, reducer->progress());
    doOthersCount = false;
    const int source = sourceOf(ranks);
    // Where some have made a step more, these may have made one of a schedule too.
    if (areAlike(ranks)) compareOptimizers(group, options);
    doOthersCount = true;
    std::shared_ptr<Reducer> next = makeReducer(module, group, options, reducer->claim());
    if (options.hook) options.hook->agree(group);
    receiveValues(module, group, source);
    next->goOn(after(ranks));
    reducer = std::move(next);
    return areAlike(ranks);
  } catch (...) {
    const Status why = statusOfCurrentException("rebind");
    if (doOthersCount) abandonGroup(group, "could not rebind (" + why.message() + ")", why);
    if (options.hook) bindHook(*options.hook, reducer->list(), before);
    throw;
  }
}

}  // namespace treadle::ddp

#include "treadle/train/ddp/replicas.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "treadle/core/base/error.h"
#include "treadle/train/ddp/idle_threads.h"
#include "treadle/train/ddp/replica_buffers.h"
#include "treadle/train/ddp/thread_generator.h"

namespace treadle::ddp {
namespace {

// Draws from the generator of the calling thread, so that torch::manual_seed decides.
uint64_t drawSeed() { return static_cast<uint64_t>(at::empty({}, at::kLong).random_().item<int64_t>()); }

// The first failure by replica, which says how many there are.
Status failureOf(const std::vector<Status>& statuses) {
  const auto failed = [](const Status& status) { return !status.ok(); };
  const auto first = std::ranges::find_if(statuses, failed);
  if (first == statuses.end()) return {};
  const auto others = std::ranges::count_if(statuses, failed) - 1;
  return first->withContext("replica " + std::to_string(first - statuses.begin()) + " of " +
                            std::to_string(statuses.size()) +
                            (others > 0 ? " (" + std::to_string(others) + " more failed)" : ""));
}

ReplicaSums sumsOf(const std::vector<ReplicaLoss>& results) {
  ReplicaSums sums;
  for (const ReplicaLoss& result : results) {
    sums.losses.push_back(result.loss.defined() ? result.loss.detach() : at::Tensor());
    sums.weight += result.weight.value_or(0);
  }
  return sums;
}

}  // namespace

Replicas::Replicas(std::shared_ptr<torch::nn::Module> module, const ReplicaSetOptions& options, const MakeModule& make,
                   bool isOfRank)
    : options_(checked(options)),
      isOfRank_(isOfRank),
      clones_(std::move(module), options_.replicas, make),
      owners_(clones_.parameters()),
      threads_(options_.replicas, intraOpThreadsOf(options_)) {}

ReplicaSums Replicas::run(const Function& function) {
  if (isUnderWay_.exchange(true))
    raise(
        failedPrecondition("backward() of a ReplicaSet is called while another one of the same set is under way: its "
                           "function must not call it, and one thread at a time uses the set"));
  const struct Ends {
    std::atomic<bool>& flag;
    ~Ends() { flag = false; }
  } ends{isUnderWay_};
  throwIfError(clones_.checkUnchanged());
  dropGradients(clones_.parameters());  // of a pass that failed
  clones_.follow();
  endIdleThreads();  // of the last step of an optimizer, as a rule

  const uint64_t seed = drawSeed();
  std::vector<ReplicaLoss> results = callFunctions(function, seed);
  ReplicaSums sums = sumsOf(results);
  throwIfError(checkWeight(sums));
  computeGradients(results, seed + results.size());
  addUp(clones_.parameters(), divisorOf(sums), sums);
  mergeBuffersOf(results, sums.weight);
  return sums;
}

void Replicas::runAll(uint64_t seed, const std::function<void(size_t)>& task) {
  throwIfError(failureOf(threads_.run([&](int thread) {
    const auto replica = static_cast<size_t>(thread);
    const ThreadGenerator random(seed + replica);
    task(replica);
  })));
}

std::vector<ReplicaLoss> Replicas::callFunctions(const Function& function, uint64_t seed) {
  const auto count = static_cast<size_t>(size());
  std::vector<ReplicaLoss> results(count);
  std::vector<std::vector<LossLeaf>> leaves(count);
  runAll(seed, [&](size_t replica) {
    results[replica] = callFunction(function, replica);
    if (results[replica].loss.defined()) leaves[replica] = leavesOf(results[replica].loss);
  });
  throwIfError(failureOf(owners_.check(leaves)));
  return results;
}

ReplicaLoss Replicas::callFunction(const Function& function, size_t replica) const {
  const std::vector<int64_t> versions = clones_.versionsOf(replica);
  ReplicaLoss result = function(clones_.module(replica), static_cast<int>(replica));
  throwIfError(clones_.checkUntouched(replica, versions));
  throwIfError(checkLoss(result, options_.divisor));
  if (!result.loss.defined()) return {};  // its weight does not count
  return result;
}

// Leaves the losses detached.
void Replicas::computeGradients(std::vector<ReplicaLoss>& results, uint64_t seed) {
  runAll(seed, [&](size_t replica) {
    if (!results[replica].loss.defined()) return;
    const at::Tensor detached = results[replica].loss.detach();
    const at::Tensor loss = std::exchange(results[replica].loss, detached);  // the graph ends in this thread
    loss.backward();
  });
}

// With ranks, others may have a weight.
Status Replicas::checkWeight(const ReplicaSums& sums) const {
  if (options_.divisor != Divisor::kWeights) return {};
  const bool hasBatch = std::ranges::any_of(sums.losses, [](const at::Tensor& loss) { return loss.defined(); });
  if (std::isfinite(sums.weight) && (sums.weight > 0 || isOfRank_ || !hasBatch)) return {};
  return failedPrecondition("the weights of the replicas add up to " + std::to_string(sums.weight) +
                            ": give each loss its number of samples or tokens");
}

double Replicas::divisorOf(const ReplicaSums& sums) const {
  if (options_.divisor == Divisor::kWorldSize) return options_.replicas;
  return options_.divisor == Divisor::kWeights && !isOfRank_ ? sums.weight : 1;
}

// Where no replica had a batch, the module's stay as they are.
void Replicas::mergeBuffersOf(const std::vector<ReplicaLoss>& results, double weight) {
  const auto first = std::ranges::find_if(results, [](const ReplicaLoss& result) { return result.loss.defined(); });
  if (first == results.end()) return;
  std::vector<double> shares(results.size(), 1.0 / static_cast<double>(results.size()));
  if (options_.divisor == Divisor::kWeights && weight > 0)
    for (size_t i = 0; i < shares.size(); ++i) shares[i] = results[i].weight.value_or(0) / weight;
  const at::NoGradGuard noGrad;
  mergeBuffers(clones_.buffers(), options_.buffers, static_cast<size_t>(first - results.begin()), shares);
}

}  // namespace treadle::ddp

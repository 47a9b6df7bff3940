#include "treadle/train/ddp/replicas.h"

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/add.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/modules/embedding.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <unordered_map>
#include <utility>

#include "treadle/core/base/error.h"
#include "treadle/tensor/collective/flat.h"
#include "treadle/train/ddp/first_difference.h"
#include "treadle/train/ddp/named_tensors.h"
#include "treadle/train/ddp/same_type.h"
#include "treadle/train/ddp/sync_batch_norm.h"
#include "treadle/train/ddp/thread_generator.h"

namespace treadle::ddp {
namespace {

constexpr int kMaxReplicas = 256, kMaxIntraOpThreads = 1024;

void checkOptions(const ReplicaSetOptions& options) {
  auto checkRange = [](const char* name, int value, int least, int most) {
    if (value < least || value > most)
      raise(invalidArgument(std::string("ReplicaSetOptions::") + name + " is " + std::to_string(value) +
                            ", and is from " + std::to_string(least) + " to " + std::to_string(most)));
  };
  checkRange("replicas", options.replicas, 1, kMaxReplicas);
  checkRange("intraOpThreads", options.intraOpThreads, 0, kMaxIntraOpThreads);
  if (options.divisor == Divisor::kActiveRanks)
    raise(
        invalidArgument("a ReplicaSet cannot have the divisor kActiveRanks, which counts ranks and not their "
                        "replicas: use kWeights, with the number of samples as the weight"));
}

bool hasMaxNorm(const torch::nn::Module& module) {
  const auto* embedding = dynamic_cast<const torch::nn::EmbeddingImpl*>(&module);
  const auto* bag = dynamic_cast<const torch::nn::EmbeddingBagImpl*>(&module);
  return (embedding != nullptr && embedding->options.max_norm()) || (bag != nullptr && bag->options.max_norm());
}

void refuseLayers(const torch::nn::Module& module) {
  for (const auto& submodule : module.modules()) {
    if (hasMaxNorm(*submodule))
      raise(invalidArgument(
          "a ReplicaSet cannot have an Embedding with max_norm, whose forward writes the weight that all replicas "
          "share: normalize it after the optimizer's step"));
    if (dynamic_cast<const SyncBatchNormImpl*>(submodule.get()) != nullptr)
      raise(invalidArgument(
          "a ReplicaSet cannot have a SyncBatchNorm, whose exchanges its threads would come to in any order: use "
          "BatchNorm, or a rank for each replica"));
  }
}

int intraOpThreadsOf(const ReplicaSetOptions& options) {
  return options.intraOpThreads > 0 ? options.intraOpThreads : std::max(1, at::get_num_threads() / options.replicas);
}

// Draws from the generator of the calling thread, so that torch::manual_seed decides.
uint64_t drawSeed() { return static_cast<uint64_t>(at::empty({}, at::kLong).random_().item<int64_t>()); }

Status checkLoss(const ReplicaLoss& result, Divisor divisor) {
  if (!result.loss.defined()) return {};
  if (!result.loss.requires_grad())
    return failedPrecondition(
        "its loss requires no gradient: compute it from the replica's parameters, with gradients enabled");
  if (divisor != Divisor::kWeights && result.weight)
    return failedPrecondition("its loss has a weight, which has no meaning unless the divisor is Divisor::kWeights");
  if (divisor == Divisor::kWeights && !result.weight)
    return failedPrecondition(
        "the divisor is Divisor::kWeights, and its loss has no weight: return ReplicaLoss(loss, weight)");
  if (result.weight && (!(*result.weight >= 0) || !std::isfinite(*result.weight)))
    return invalidArgument("its loss has the weight " + std::to_string(*result.weight) +
                           ": weights are finite and not negative, as a number of samples is");
  return {};
}

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

// Where it is cheap, also for NaN and for zeros with a sign.
bool haveSameBits(const at::Tensor& a, const at::Tensor& b) {
  auto isPlain = [](const at::Tensor& tensor) { return collective::isDenseOnCpu(tensor) && tensor.is_contiguous(); };
  if (!isPlain(a) || !isPlain(b)) return at::equal(a, b);
  return a.nbytes() == 0 || std::memcmp(a.const_data_ptr(), b.const_data_ptr(), a.nbytes()) == 0;
}

int64_t versionOf(const at::Tensor& tensor) { return tensor.is_inference() ? 0 : tensor._version(); }

// A buffer whose values stay the same is not written, so graphs that have saved it stay valid.
void assign(at::Tensor& to, const at::Tensor& from) {
  if (!haveSameType(to, from)) {
    to.set_data(from.clone());
  } else if (!haveSameBits(to, from)) {
    to.copy_(from);
  }
}

// The first sum is a new tensor: gradients of two parameters may share memory. A dense and a sparse one make a dense
// one.
at::Tensor sumOf(const at::Tensor& sum, const at::Tensor& gradient, bool isNew) {
  if (sum.is_sparse() && !gradient.is_sparse()) return at::add(gradient, sum);
  return isNew ? at::Tensor(sum).add_(gradient) : at::add(sum, gradient);
}

}  // namespace

Replicas::Replicas(std::shared_ptr<torch::nn::Module> module, const ReplicaSetOptions& options, bool isOfRank)
    : module_(std::move(module)), options_(options), isOfRank_(isOfRank) {
  checkOptions(options_);
  if (!module_) raise(invalidArgument("a ReplicaSet was given no module"));
  refuseLayers(*module_);
  for (NamedTensor& parameter : parametersOf(*module_))
    parameters_.push_back({std::move(parameter.names), parameter.tensor, {}, versionOf(parameter.tensor)});
  for (NamedTensor& buffer : buffersOf(*module_)) buffers_.push_back({std::move(buffer.names), buffer.tensor});
  {
    const ThreadGenerator random(0);  // reset() draws values, which are replaced: the program's generator stays
    for (int replica = 0; replica < options_.replicas; ++replica) addReplica();
  }
  refuseSharedTensors(parameters_);
  refuseSharedTensors(buffers_);
  addOwners();
  threads_ = std::make_unique<ReplicaThreads>(options_.replicas, intraOpThreadsOf(options_));
}

void Replicas::addReplica() {
  replicas_.push_back(pairsOf(module_, cloneOf(*module_)));
  addClone(replicas_.back(), parameters_, buffers_);
  follow(replicas_.size() - 1);  // lets go of the clone's own memory
}

void Replicas::addOwners() {
  for (const ClonedTensor& parameter : parameters_) {
    owners_[parameter.tensor.unsafeGetTensorImpl()] = {std::nullopt, &parameter};
    for (size_t replica = 0; replica < parameter.ofClones.size(); ++replica)
      for (const at::Tensor& own : parameter.ofClones[replica])
        owners_[own.unsafeGetTensorImpl()] = {static_cast<int>(replica), &parameter};
  }
}

ReplicaSums Replicas::run(const Function& function) {
  if (isUnderWay_.exchange(true))
    raise(
        failedPrecondition("backward() of a ReplicaSet is called while another one of the same set is under way: its "
                           "function must not call it, and one thread at a time uses the set"));
  const struct Ends {
    std::atomic<bool>& flag;
    ~Ends() { flag = false; }
  } ends{isUnderWay_};
  throwIfError(checkUnchanged());
  dropGradients();  // of a pass that failed
  for (size_t replica = 0; replica < replicas_.size(); ++replica) follow(replica);
  followVersions();
  followModes();

  std::vector<Outcome> outcomes(replicas_.size());
  const uint64_t seed = drawSeed();
  runAll(seed, [&](int index) { outcomes[static_cast<size_t>(index)] = callFunction(function, index); });
  throwIfError(failureOf(checkLeaves(outcomes)));
  ReplicaSums sums;
  for (const Outcome& outcome : outcomes) {
    sums.losses.push_back(outcome.loss.defined() ? outcome.loss.detach() : at::Tensor());
    sums.weight += outcome.weight;
  }
  throwIfError(checkWeight(sums));
  runAll(seed + replicas_.size(), [&](int index) {
    Outcome& outcome = outcomes[static_cast<size_t>(index)];
    if (!outcome.loss.defined()) return;
    const at::Tensor loss = std::exchange(outcome.loss, outcome.loss.detach());  // the graph ends in this thread
    outcome.leaves.clear();
    loss.backward();
  });
  addUp(sums);
  mergeBuffers(outcomes, sums.weight);
  return sums;
}

Status Replicas::checkUnchanged() const {
  for (const ClonedTensor& parameter : parameters_) {
    const at::Tensor &now = parameter.tensor, &was = parameter.ofClones.front().front();
    if (haveSameType(now, was)) continue;
    return failedPrecondition("parameter " + parameter.names + " is of " + toString(now.scalar_type()) + " " +
                              c10::str(now.sizes()) + " on " + now.device().str() + " now, and was of " +
                              toString(was.scalar_type()) + " " + c10::str(was.sizes()) + " on " + was.device().str() +
                              " when ReplicaSet was constructed: construct it after the conversion");
  }
  return {};
}

// The replicas' parameters get the memory of the module's again, if these have got other memory since, and are frozen
// or trained as these are.
void Replicas::follow(size_t replica) {
  const at::NoGradGuard noGrad;
  for (ClonedTensor& parameter : parameters_)
    for (at::Tensor& own : parameter.ofClones[replica]) {
      if (own.const_data_ptr() != parameter.tensor.const_data_ptr() || own.strides() != parameter.tensor.strides())
        own.set_data(parameter.tensor.variable_data());
      own.set_requires_grad(parameter.tensor.requires_grad());
    }
  for (ClonedTensor& buffer : buffers_) assign(buffer.ofClones[replica].front(), buffer.tensor);
}

// A graph that a function keeps over passes then notices that a parameter which it has saved was changed meanwhile.
void Replicas::followVersions() {
  for (ClonedTensor& parameter : parameters_) {
    const int64_t version = versionOf(parameter.tensor);
    if (std::exchange(parameter.version, version) == version) continue;
    for (std::vector<at::Tensor>& ofClone : parameter.ofClones)
      for (at::Tensor& own : ofClone) own.unsafeGetTensorImpl()->bump_version();
  }
}

// Modules come before their submodules, so a mode that a submodule has by itself is set last.
void Replicas::followModes() {
  for (const std::vector<ModulePair>& replica : replicas_)
    for (const ModulePair& pair : replica)
      if (pair.clone->is_training() != pair.original->is_training()) pair.clone->train(pair.original->is_training());
}

void Replicas::runAll(uint64_t seed, const std::function<void(int)>& task) {
  throwIfError(failureOf(threads_->run([&](int index) {
    const ThreadGenerator random(seed + static_cast<uint64_t>(index));
    task(index);
  })));
}

Replicas::Outcome Replicas::callFunction(const Function& function, int index) const {
  const std::vector<int64_t> versions = versionsOf(index);
  const ReplicaLoss result = function(*replicas_[static_cast<size_t>(index)].front().clone, index);
  throwIfError(checkParameters(index, versions));
  throwIfError(checkLoss(result, options_.divisor));
  if (!result.loss.defined()) return {};
  return {result.loss, result.weight.value_or(0), leavesOf(result.loss)};
}

std::vector<int64_t> Replicas::versionsOf(int index) const {
  std::vector<int64_t> versions;
  for (const ClonedTensor& parameter : parameters_)
    for (const at::Tensor& own : parameter.ofClones[static_cast<size_t>(index)]) versions.push_back(versionOf(own));
  return versions;
}

// Whether its function has left them as they were.
Status Replicas::checkParameters(int index, const std::vector<int64_t>& versions) const {
  auto before = versions.begin();
  for (const ClonedTensor& parameter : parameters_)
    for (const at::Tensor& own : parameter.ofClones[static_cast<size_t>(index)]) {
      if (versionOf(own) != *before++)
        return failedPrecondition("its function wrote parameter " + parameter.names +
                                  ", whose memory all replicas share: change parameters between passes");
      if (own.requires_grad() != parameter.tensor.requires_grad())
        return failedPrecondition("its function froze or unfroze parameter " + parameter.names +
                                  ": do that to the module, between passes");
      if (own.grad().defined())
        return failedPrecondition("its function computed a gradient of parameter " + parameter.names +
                                  ": return the loss, and ReplicaSet calls backward()");
    }
  return {};
}

// By replica. A leaf that one replica's function alone has made, such as an input, is its own.
std::vector<Status> Replicas::checkLeaves(const std::vector<Outcome>& outcomes) const {
  std::vector<Status> statuses(outcomes.size());
  std::unordered_map<const c10::TensorImpl*, size_t> others;
  for (size_t index = 0; index < outcomes.size(); ++index)
    for (const LossLeaf& leaf : outcomes[index].leaves) {
      const c10::TensorImpl* const tensor = leaf.tensor.unsafeGetTensorImpl();
      const std::string dependsOn = "the loss depends on ";
      if (const auto owner = owners_.find(tensor); owner != owners_.end()) {
        const auto& [replica, parameter] = owner->second;
        if (replica == static_cast<int>(index)) continue;
        statuses[index] = failedPrecondition(dependsOn + "parameter " + parameter->names + " of " +
                                             (replica ? "replica " + std::to_string(*replica) : "the module itself") +
                                             ": a ReplicaSet computes with the replica that its function is given");
      } else if (const auto [first, isNew] = others.try_emplace(tensor, index); !isNew || leaf.isHooked) {
        statuses[index] =
            failedPrecondition(dependsOn + "a trained tensor of " + toString(leaf.tensor.scalar_type()) + " " +
                               c10::str(leaf.tensor.sizes()) + " that is no parameter of the replica, and " +
                               (isNew ? "has a hook of a DistributedDataParallel"
                                      : "the loss of replica " + std::to_string(first->second) + " does too") +
                               ": make it a parameter of the module, or detach it");
      }
    }
  return statuses;
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

void Replicas::addUp(ReplicaSums& sums) {
  const at::NoGradGuard noGrad;
  const double divisor = divisorOf(sums);
  for (ClonedTensor& parameter : parameters_) {
    at::Tensor sum;
    bool isNew = false;
    for (std::vector<at::Tensor>& ofClone : parameter.ofClones)
      for (at::Tensor& own : ofClone) {
        const at::Tensor gradient = std::exchange(own.mutable_grad(), at::Tensor());
        if (!gradient.defined()) continue;
        const bool isFirst = !sum.defined();
        sum = isFirst ? gradient : sumOf(sum, gradient, isNew);
        isNew = !isFirst;
      }
    if (!sum.defined()) continue;
    sums.parameters.push_back(parameter.tensor);
    sums.gradients.push_back(divisor == 1 ? sum : sum.div(divisor));
  }
}

void Replicas::dropGradients() {
  for (ClonedTensor& parameter : parameters_)
    for (std::vector<at::Tensor>& ofClone : parameter.ofClones)
      for (at::Tensor& own : ofClone) own.mutable_grad().reset();
}

// Where no replica had a batch, the module's stay as they are.
void Replicas::mergeBuffers(const std::vector<Outcome>& outcomes, double weight) {
  const auto first = std::ranges::find_if(outcomes, [](const Outcome& outcome) { return outcome.loss.defined(); });
  if (first == outcomes.end()) return;
  std::vector<double> shares(outcomes.size(), 1.0 / static_cast<double>(outcomes.size()));
  if (options_.divisor == Divisor::kWeights && weight > 0)
    for (size_t i = 0; i < shares.size(); ++i) shares[i] = outcomes[i].weight / weight;
  const at::NoGradGuard noGrad;
  for (ClonedTensor& buffer : buffers_) mergeBuffer(buffer, static_cast<size_t>(first - outcomes.begin()), shares);
}

// As BufferSync does it over ranks: a rounded mean would change constants a little each time.
void Replicas::mergeBuffer(ClonedTensor& buffer, size_t first, const std::vector<double>& shares) const {
  const at::Tensor& ofFirst = buffer.ofClones[first].front();
  auto ofAll = [&](auto holds) {
    return std::ranges::all_of(buffer.ofClones, [&](const auto& own) { return holds(own.front(), ofFirst); });
  };
  if (options_.buffers != Buffers::kAverage || !ofFirst.is_floating_point() || !ofAll(haveSameType) ||
      ofAll(haveSameBits))
    return assign(buffer.tensor, ofFirst);
  at::Tensor mean = at::zeros_like(ofFirst);
  for (size_t i = 0; i < shares.size(); ++i)
    if (shares[i] > 0) mean.add_(buffer.ofClones[i].front(), shares[i]);
  assign(buffer.tensor, mean);
}

void checkNumberOfReplicas(const ProcessGroup& group, const ReplicaSetOptions& options) {
  std::vector<std::string> lines = {std::string("a ReplicaSet with the divisor ") + nameOf(options.divisor)};
  if (options.divisor == Divisor::kWorldSize ||
      (options.divisor != Divisor::kWeights && options.buffers == Buffers::kAverage))
    lines.push_back("ReplicaSetOptions::replicas " + std::to_string(options.replicas));
  if (auto difference = firstDifference(group, lines))
    raise(invalidArgument("the ranks' sets of replicas are not alike: " + *difference));
}

void accumulate(const ReplicaSums& sums) {
  if (!sums.parameters.empty()) torch::autograd::backward(sums.parameters, sums.gradients);
}

}  // namespace treadle::ddp

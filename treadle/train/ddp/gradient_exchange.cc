#include "treadle/train/ddp/gradient_exchange.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <utility>

#include "treadle/core/base/error.h"

namespace treadle::ddp {

GradientExchange::GradientExchange(const ParameterList& list, ProcessGroup group, const BucketLimits& limits,
                                   UnusedParameters unused, const std::vector<size_t>& order,
                                   std::shared_ptr<CommHook> hook, PassRecorder& recorder)
    : list_(list),
      group_(std::move(group)),
      limits_(limits),
      hook_(std::move(hook)),
      recorder_(recorder),
      uses_(list_, unused),
      sparse_(list_, group_),
      order_(order.empty() ? reverseOrder(list_.trained().size()) : order),
      mayReorder_(order.empty()),
      arrivals_(list_.trained().size()),
      plan_(planned()),
      buckets_(makeBuckets(list_.trained(), plan_)),
      channel_(newChannel()),
      made_(list_.trained()),
      arrived_(list_.trained().size()),
      begun_(group_) {}

BucketPlan GradientExchange::planned() const {
  std::vector<size_t> sent = order_;
  std::erase_if(sent, [this](size_t index) { return !uses_.isSent(index) || sparse_.isExpected(index); });
  return {list_.trained(), sent, limits_};
}

ExactChannel GradientExchange::newChannel() const {
  return {group_, list_.trained().size(), buckets_.size(), mayReorder_};
}

void GradientExchange::replan() {
  plan_ = planned();
  reductions_.clear();
  buckets_.clear();  // the memory goes first
  renewMemory();
  channel_ = newChannel();
}

void GradientExchange::renewMemory() { buckets_ = makeBuckets(list_.trained(), plan_); }

Status GradientExchange::begin(autograd::Pass* distributed, bool isShadow) {
  recorder_.passBegins();
  if (mustReplan_) replan();
  mustReplan_ = false;
  isLocal_ = distributed == nullptr;
  if (isLocal_) {
    store_ = std::make_unique<LocalGradients>();
  } else {
    store_ = std::make_unique<ContextGradients>(*distributed);
  }
  launched_ = 0;
  arrived_.assign(arrived_.size(), false);
  arrivals_.clear();
  filled_.assign(buckets_.size(), 0);
  operationsOf_.assign(parts(), 0);
  reductions_.clear();
  reductions_.resize(buckets_.size());
  for (Bucket& bucket : buckets_)
    if (isShared(bucket)) bucket = makeBucket(list_.trained(), bucket.parameters);
  channel_.renew();
  sparse_.begin();
  isOutOfStep_ = false;
  return callHook([&] { isShadow ? hook_->beginShadowPass() : hook_->beginPass(); });
}

Status GradientExchange::add(size_t index, Operations& operations) {
  const PassRecorder::Copying copying(recorder_);
  TREADLE_RETURN_IF_ERROR(checkNoHistory(index));
  // Within one pass a parameter is accumulated once, after its last use; but anew in each local pass that a node
  // starts.
  const bool isFirst = !arrived_[index];
  arrived_[index] = true;
  arrivals_.add(index);
  const std::optional<BucketPlan::Place> place = plan_.placeOf(index);
  if (!place) return {};  // marked at the end
  const auto [number, position] = *place;
  if (number < launched_) {
    channel_.markAgain(number);
    if (gradientOf(index).isDense()) channel_.markUsed(index);
    return {};
  }
  // A copy, not a gradient that lies in the bucket from the start: `.grad` belongs to the user or to the context.
  TREADLE_RETURN_IF_ERROR(fill(buckets_[number], position));
  if (isFirst && ++filled_[number] == buckets_[number].parameters.size()) recorder_.ready(number);
  return launchFull(operations);
}

Status GradientExchange::launchFull(Operations& operations) {
  for (; launched_ < buckets_.size(); ++launched_) {
    if (isOutOfStep_ || filled_[launched_] < buckets_[launched_].parameters.size()) break;
    TREADLE_RETURN_IF_ERROR(reduce(launched_, operations));
  }
  return {};
}

Status GradientExchange::sendRest(bool failed, Operations& operations) {
  const PassRecorder::Copying copying(recorder_);
  Status filled;
  for (; launched_ < buckets_.size() && !isOutOfStep_; ++launched_) {
    if (!failed && filled.ok()) filled = fillAbsent(buckets_[launched_]);
    const Status begun = reduce(launched_, operations);
    if (filled.ok()) filled = begun;
  }
  return failed || !filled.ok() ? filled : checkRest();
}

// In a distributed pass the `.grad` of parameters that it has not come to is no part of it.
Status GradientExchange::checkRest() try {
  for (size_t index = 0; index < arrived_.size(); ++index) {
    if (isLocal_ && !arrived_[index]) TREADLE_RETURN_IF_ERROR(checkNoHistory(index));
    TREADLE_RETURN_IF_ERROR(sparse_.check(index, gradientOf(index)));
  }
  return {};
} catch (...) {
  return statusOfCurrentException("the averaging of gradients");
}

void GradientExchange::sendChannel(const RankReport& own, Operations& operations) {
  for (size_t index = 0; index < arrived_.size(); ++index) {
    const OwnGradient gradient = gradientOf(index);
    if (gradient.isSparse()) channel_.markSparse(index, gradient.sparseDims());
    if (gradient.isDense() && !plan_.placeOf(index)) channel_.markUsed(index);
  }
  if (mayReorder_ && group_.rank() == 0 && !arrivals_.isEmpty()) channel_.markOrder(arrivals_.order());
  operations.push_back(channel_.send(own));
}

Status GradientExchange::outcome() const {
  TREADLE_RETURN_IF_ERROR(channel_.outcome());
  return uses_.check(channel_);
}

Status GradientExchange::learn() {
  if (mayReorder_) {
    Result<std::vector<size_t>> order = channel_.order();
    TREADLE_RETURN_IF_ERROR(order.status());
    mayReorder_ = order->empty();
    mustReplan_ = !mayReorder_;
    if (!mayReorder_) order_ = *std::move(order);
  }
  if (uses_.learn(channel_)) mustReplan_ = true;
  if (sparse_.learn(channel_)) mustReplan_ = true;
  return {};
}

Status GradientExchange::sendAgain(Operations& operations) {
  const PassRecorder::Copying copying(recorder_);
  for (size_t number = 0; number < buckets_.size(); ++number) {
    if (!channel_.again(number)) {
      TREADLE_RETURN_IF_ERROR(goOn(number, operations));
      continue;
    }
    Bucket& bucket = buckets_[number];
    for (size_t position = 0; position < bucket.parameters.size(); ++position)
      TREADLE_RETURN_IF_ERROR(fill(bucket, position));
    TREADLE_RETURN_IF_ERROR(reduce(number, operations));
  }
  return sendSparse(operations);
}

Status GradientExchange::sendSparse(Operations& operations) try {
  const size_t part = buckets_.size();
  std::vector<Future<void>> begun;
  for (size_t index = 0; index < arrived_.size(); ++index) {
    if (!channel_.used(index)) continue;
    if (!channel_.isDense(index)) {
      begun.push_back(sparse_.sumRows(index, channel_.sparseDims(index), gradientOf(index)));
    } else if (!plan_.placeOf(index)) {
      at::Tensor own = at::empty(parameter(index).sizes(), parameter(index).options().requires_grad(false));
      gradientOf(index).copyTo(own);
      begun.push_back(sparse_.sum(index, std::move(own)));
    }
  }
  if (begun.empty()) return {};
  recorder_.launched(part, sparse_.sentBytes());
  for (Future<void>& operation : begun) {
    recorder_.watch(part, operation);
    operations.push_back(std::move(operation));
  }
  operationsOf_[part] = operations.size();
  return {};
} catch (...) {
  return statusOfCurrentException("the averaging of sparse gradients");
}

bool GradientExchange::areRoundsLeft() const {
  return std::any_of(reductions_.begin(), reductions_.end(), [](const auto& one) { return one.has_value(); });
}

Status GradientExchange::sendNextRound(Operations& operations) {
  const PassRecorder::Copying copying(recorder_);
  for (size_t number = 0; number < buckets_.size(); ++number) TREADLE_RETURN_IF_ERROR(goOn(number, operations));
  return {};
}

// With what this rank has for a parameter. One that the pass has not come to may have a gradient of earlier passes,
// which the ranks that go on with theirs have in it too, and which need not have been averaged. A sparse gradient goes
// too, as it may be dense on another rank; it is marked at the end, when it cannot become dense any more.
Status GradientExchange::fill(Bucket& bucket, size_t position) {
  const size_t index = bucket.parameters[position];
  const OwnGradient own = gradientOf(index);
  TREADLE_RETURN_IF_ERROR(sparse_.check(index, own));
  own.copyTo(bucket.views[position]);
  if (own.isDense()) channel_.markUsed(index);
  return {};
}

Status GradientExchange::fillAbsent(Bucket& bucket) try {
  for (size_t position = 0; position < bucket.parameters.size(); ++position) {
    if (arrived_[bucket.parameters[position]]) continue;
    TREADLE_RETURN_IF_ERROR(fill(bucket, position));
  }
  return {};
} catch (...) {
  return statusOfCurrentException("the averaging of gradients");
}

// In a local pass `.grad` may also have one from a pass under noSync.
Status GradientExchange::checkNoHistory(size_t index) const {
  const at::Tensor& gradient = parameter(index).grad();
  if (!gradient.defined() || !gradient.requires_grad()) return {};
  return invalidArgument("the gradient of parameter " + list_.nameOf(index) +
                         " has a history, from backward with create_graph in this pass or in an earlier one under "
                         "noSync, which its average would lose: clear .grad, make the inner derivative by "
                         "torch::autograd::grad, and call backward without create_graph");
}

// The same operations on every rank, whatever got a gradient where: a rank without one adds zeros.
Status GradientExchange::reduce(size_t number, Operations& operations) {
  reductions_[number].reset();
  recorder_.launched(number, buckets_[number].flat.nbytes());
  TREADLE_RETURN_IF_ERROR(callHook([&] { reductions_[number].emplace(hook_->reduce(begun_, buckets_[number])); }));
  return goOn(number, operations);
}

// To the end of the next round of a bucket, if there is one.
Status GradientExchange::goOn(size_t number, Operations& operations) {
  std::optional<Reduction>& reduction = reductions_[number];
  if (!reduction) return {};
  bool isAnotherRound = false;
  Status failure = callHook([&] { isAnotherRound = reduction->next(); });
  if (!isAnotherRound) reduction.reset();
  for (Future<void>& operation : begun_.take()) {
    recorder_.watch(number, operation);
    operations.push_back(std::move(operation));
    operationsOf_[number] = operations.size();
  }
  return failure;
}

template <class F>
Status GradientExchange::callHook(F function) try {
  function();
  return {};
} catch (...) {
  isOutOfStep_ = true;
  return statusOfCurrentException("the hook of a DistributedDataParallel");
}

std::vector<size_t> GradientExchange::operationEnds() const {
  std::vector<size_t> ends = operationsOf_;
  for (size_t part = 1; part < ends.size(); ++part) ends[part] = std::max(ends[part], ends[part - 1]);
  return ends;
}

std::optional<size_t> GradientExchange::partOf(size_t parameter) const {
  if (!channel_.used(parameter)) return std::nullopt;
  const std::optional<BucketPlan::Place> place = plan_.placeOf(parameter);
  return place && channel_.isDense(parameter) ? place->bucket : buckets_.size();
}

void GradientExchange::put(double factor) {
  for (size_t part = 0; part < parts(); ++part) put(part, factor);
}

// A parameter that no rank used keeps what it has, like in one process: a gradient of zero is not the same as none to
// an optimizer with momentum or weight decay. Where the average is sparse, sendSparse() has made it.
std::vector<size_t> GradientExchange::put(size_t number, double factor) {
  const auto isMade = [&](size_t index) { return isLocal_ ? made_.has(index) : arrived_[index]; };
  if (number == buckets_.size()) return sparse_.put(*store_, isMade, factor);
  Bucket& bucket = buckets_[number];
  if (factor != 1) bucket.flat.mul_(factor);
  std::vector<size_t> used;
  for (size_t position = 0; position < bucket.parameters.size(); ++position) {
    const size_t index = bucket.parameters[position];
    if (!channel_.isDense(index)) continue;
    store_->put(bucket.views[position], parameter(index), isMade(index));
    used.push_back(index);
  }
  return used;
}

void GradientExchange::passAveraged() {
  std::vector<bool> isUsed(arrived_.size()), isInBucket(arrived_.size());
  for (size_t index = 0; index < isUsed.size(); ++index) {
    isUsed[index] = channel_.used(index);
    isInBucket[index] = plan_.placeOf(index) && channel_.isDense(index);
  }
  hook_->passAveraged(isInBucket);
  // No rank uses any where none has a batch.
  recorder_.averaged(channel_.reports(), channel_.anyUsed() ? std::move(isUsed) : std::vector<bool>());
}

}  // namespace treadle::ddp

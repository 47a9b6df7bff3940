#include "treadle/train/ddp/reducer.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/engine.h>

#include "treadle/core/base/error.h"
#include "treadle/tensor/collective/collectives.h"

namespace treadle::ddp {

Reducer::Reducer(std::vector<at::Tensor> parameters, Group group, const BucketLimits& limits)
    : parameters_(std::move(parameters)), group_(std::move(group)), placeOf_(parameters_.size()),
      arrived_(parameters_.size()) {
  for (std::vector<size_t>& indexes : planBuckets(parameters_, limits)) {
    Bucket bucket;
    int64_t elements = 0;
    for (size_t index : indexes) elements += parameters_[index].numel();
    bucket.flat = at::empty({elements}, parameters_[indexes.front()].options().requires_grad(false));
    int64_t offset = 0;
    for (size_t position = 0; position < indexes.size(); ++position) {
      const at::Tensor& parameter = parameters_[indexes[position]];
      bucket.views.push_back(bucket.flat.narrow(0, offset, parameter.numel()).view(parameter.sizes()));
      placeOf_[indexes[position]] = {buckets_.size(), position};
      offset += parameter.numel();
    }
    bucket.parameters = std::move(indexes);
    buckets_.push_back(std::move(bucket));
  }
  hooks_ = std::make_unique<GradientHooks>(parameters_, [this](size_t index) { onGradient(index); });
}

void Reducer::onGradient(size_t parameter) {
  MutexLock lock(mutex_);
  if (!inPass_) beginPass();
  auto [bucketIndex, position] = placeOf_[parameter];
  Bucket& bucket = buckets_[bucketIndex];
  if (arrived_[parameter]) return;  // a parameter used twice is accumulated once, after the last use
  at::NoGradGuard noGrad;
  bucket.views[position].copy_(parameters_[parameter].grad());
  arrived_[parameter] = true;
  ++bucket.arrived;
  launchReady(false);
}

// The first gradient of a pass. Its end is told by the distributed pass, or by the local engine.
void Reducer::beginPass() {
  inPass_ = true;
  launched_ = 0;
  arrived_.assign(arrived_.size(), false);
  for (Bucket& bucket : buckets_) {
    bucket.arrived = 0;
    bucket.reduced = {};
  }
  if (autograd::Pass* pass = autograd::Pass::current()) {
    pass->onFinish([this](const Status& status) { status.ok() ? endPass() : dropPass(); });
  } else {
    torch::autograd::Engine::get_default_engine().queue_callback([this] { endPass(); });
  }
}

// One order for all ranks: a full bucket waits for those before it.
void Reducer::launchReady(bool all) {
  while (launched_ < buckets_.size()) {
    Bucket& bucket = buckets_[launched_];
    if (!all && bucket.arrived < bucket.parameters.size()) return;
    launch(bucket);
    ++launched_;
  }
}

void Reducer::launch(Bucket& bucket) {
  for (size_t position = 0; position < bucket.parameters.size(); ++position)
    if (!arrived_[bucket.parameters[position]]) bucket.views[position].zero_();
  bucket.reduced = allReduce(group_, bucket.flat, ReduceOp::kAverage);
  if (autograd::Pass* pass = autograd::Pass::current()) {
    auto pending = std::make_shared<autograd::Pass::Pending>(pass->addPending());
    auto state = bucket.reduced.share();
    state->onReady([state, pending] {
      state->result().ok() ? pending->complete() : pending->fail(state->result().status());
    });
  }
}

// All gradients that will come have come.
void Reducer::endPass() {
  std::vector<Future<void>> reductions;
  {
    MutexLock lock(mutex_);
    at::NoGradGuard noGrad;
    launchReady(true);
    for (Bucket& bucket : buckets_) reductions.push_back(bucket.reduced);
    inPass_ = false;
  }
  for (Future<void>& reduction : reductions) reduction.wait();
  MutexLock lock(mutex_);
  at::NoGradGuard noGrad;
  for (Bucket& bucket : buckets_)
    for (size_t position = 0; position < bucket.parameters.size(); ++position) {
      at::Tensor& grad = const_cast<at::Tensor&>(parameters_[bucket.parameters[position]]).mutable_grad();
      if (grad.defined()) {
        grad.copy_(bucket.views[position]);
      } else {
        grad = bucket.views[position].clone();
      }
    }
}

// The pass failed here: what was begun is waited for, as it uses the buckets, and what was not is not begun.
void Reducer::dropPass() {
  std::vector<Future<void>> reductions;
  {
    MutexLock lock(mutex_);
    for (Bucket& bucket : buckets_)
      if (bucket.reduced.valid()) reductions.push_back(bucket.reduced);
    inPass_ = false;
  }
  for (Future<void>& reduction : reductions) reduction.cancel();
}

}  // namespace treadle::ddp

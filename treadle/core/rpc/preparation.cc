#include "treadle/core/rpc/preparation.h"

#include <utility>

#include "treadle/core/rpc/engine.h"

namespace treadle::rpc {

void Preparation::awaitBytes(link::Arrival& arrival) {
  {
    MutexLock lock(mutex_);
    bytesMissing_ = true;
  }
  awaitOther();
  arrival.whenWhole([self = shared_from_this()](const Status& whole) {
    {
      MutexLock lock(self->mutex_);
      self->bytesMissing_ = false;
    }
    self->settle(self->outcomeOf(whole));
  });
}

// Bytes that do not come whole have a sender that is lost. It is not named yet: its connection ended just now.
Status Preparation::outcomeOf(const Status& whole) const {
  if (whole.code() != Code::kPeerLost || !whole.worker().empty()) return whole;
  const WorkerInfo caller = call_->engine.membership().info(call_->rank);
  return peerLost(caller.name, link::describe(caller) + " was lost before its tensors had come: " + whole.message());
}

void Preparation::awaitValue(References& references, const RefId& ref, UniqueFunction<void(OwnedValue)> keep) {
  awaitOther();
  uint64_t number =
      references.whenReady(ref, [self = shared_from_this(), keep = std::move(keep)](Result<OwnedValue> value) mutable {
        Status made = value.status();
        if (made.ok()) keep(std::move(*value));
        self->settle(made);
      });
  if (number == 0) return;
  stopWith([held = references.shared_from_this(), ref, number] { held->stopWaiting(ref, number); });
}

void Preparation::awaitOther() {
  MutexLock lock(mutex_);
  ++awaited_;
}

void Preparation::stopWith(UniqueFunction<void()> stop) {
  {
    MutexLock lock(mutex_);
    if (failure_.ok()) {
      if (!ended_) stops_.push_back(std::move(stop));
      return;
    }
  }
  stop();
}

void Preparation::allAsked() {
  call_->cancellation.whenRequested([weak = weak_from_this()] {
    if (auto alive = weak.lock()) alive->settle(cancelled("the caller gave up before the function began"));
  });
  settle({});
}

bool Preparation::ended() {
  MutexLock lock(mutex_);
  return ended_ || !failure_.ok();
}

void Preparation::settle(const Status& outcome) {
  {
    MutexLock lock(mutex_);
    if (outcome.ok()) {
      --awaited_;
    } else if (failure_.ok()) {
      failure_ = outcome;
    }
  }
  goOn();
}

void Preparation::goOn() {
  std::vector<UniqueFunction<void()>> stops;
  UniqueFunction<void()> begin;
  Status failure;
  {
    MutexLock lock(mutex_);
    failure = failure_;
    if (!failure.ok()) stops = std::exchange(stops_, {});
    if (!ended_ && !bytesMissing_ && (awaited_ == 0 || !failure.ok())) {
      ended_ = true;
      begin = std::move(begin_);
    }
  }
  for (auto& stop : stops) stop();
  if (!begin) return;
  if (failure.ok()) return begin();
  Responder(call_).fail(failure);
  // Of values that did come, what is held goes where destructors may wait.
  call_->engine.executor().post([call = call_, message = std::move(call_->message), handles = std::move(call_->handles),
                                 begin = std::move(begin)] {});
}

}  // namespace treadle::rpc

#pragma once
// What a request waits for before its handler may begin: the bytes of its large buffers, the object of a member call,
// the arguments that came as references. None of it keeps a thread. It ends when all is there, when something of it
// will never be, or when the caller gives up.
//
// Any thread may call anything. Budget: an allocation for a request that waits for anything, a lock and an entry for
// each thing.

#include <memory>
#include <vector>

#include "treadle/core/base/mutex.h"
#include "treadle/core/rpc/call.h"

namespace treadle::rpc {

class Preparation : public std::enable_shared_from_this<Preparation> {
 public:
  // `begin` is run once, when all is there, on the thread that brings the last of it. A failure is the call's answer.
  Preparation(std::shared_ptr<IncomingCall> call, UniqueFunction<void()> begin)
      : call_(std::move(call)), begin_(std::move(begin)) {}

  // The first thing, if it is one: no failure is told before the bytes have come, as an answer gives credit for more.
  void awaitBytes(link::Arrival& arrival);
  // The value of a reference that is owned here, which `keep` is given.
  void awaitValue(References& references, const RefId& ref, UniqueFunction<void(OwnedValue)> keep);
  // Something else, for which `settle` will be called.
  void awaitOther();
  // `stop` is called when what was awaited is wanted no more.
  void stopWith(UniqueFunction<void()> stop);
  void settle(const Status& outcome);
  // Nothing more will be awaited. From here on it ends too when the caller gives up.
  void allAsked();

  // It has failed, or begun.
  bool ended();
  IncomingCall& call() const { return *call_; }

 private:
  Status outcomeOf(const Status& whole) const;
  void goOn();

  const std::shared_ptr<IncomingCall> call_;
  Mutex mutex_;
  UniqueFunction<void()> begin_ TREADLE_GUARDED_BY(mutex_);
  std::vector<UniqueFunction<void()>> stops_ TREADLE_GUARDED_BY(mutex_);
  size_t awaited_ TREADLE_GUARDED_BY(mutex_) = 1;  // that all has been asked for
  bool bytesMissing_ TREADLE_GUARDED_BY(mutex_) = false;
  bool ended_ TREADLE_GUARDED_BY(mutex_) = false;
  Status failure_ TREADLE_GUARDED_BY(mutex_);
};

}  // namespace treadle::rpc

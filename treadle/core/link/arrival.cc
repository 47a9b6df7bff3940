#include "treadle/core/link/arrival.h"

namespace treadle::link {

void Arrival::whenWhole(UniqueFunction<void(const Status&)> then) {
  MutexLock lock(mutex_);
  if (missing_ > 0 && failed_.ok()) {
    then_ = std::move(then);
    return;
  }
  Status how = failed_;
  lock.unlock();
  then(how);
}

void Arrival::oneMore() {
  MutexLock lock(mutex_);
  if (--missing_ > 0 || !failed_.ok()) return;
  UniqueFunction<void(const Status&)> then = std::move(then_);
  lock.unlock();
  if (then) then({});
}

void Arrival::fail(const Status& why) {
  MutexLock lock(mutex_);
  if (missing_ == 0 || !failed_.ok()) return;
  failed_ = why;
  UniqueFunction<void(const Status&)> then = std::move(then_);
  lock.unlock();
  if (then) then(why);
}

}  // namespace treadle::link

#include "treadle/core/rpc/cancellation.h"

#include <utility>

namespace treadle::rpc {

void Cancellation::request() {
  std::vector<UniqueFunction<void()>> hooks;
  {
    MutexLock lock(mutex_);
    requested_.store(true, std::memory_order_release);
    hooks = std::exchange(hooks_, {});
  }
  for (auto& hook : hooks) hook();
}

void Cancellation::whenRequested(UniqueFunction<void()> then) {
  {
    MutexLock lock(mutex_);
    if (!requested()) return hooks_.push_back(std::move(then));
  }
  then();
}

}  // namespace treadle::rpc

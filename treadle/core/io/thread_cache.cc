#include "treadle/core/io/thread_cache.h"

#include <deque>
#include <new>
#include <system_error>
#include <thread>

#include "treadle/core/base/mutex.h"

namespace treadle::io {

// Shared with the threads, which are nobody's to join.
struct ThreadCache::State {
  State(Duration keepFor, size_t atMost) : keep(keepFor), most(atMost) {}

  const Duration keep;
  const size_t most;
  Mutex mutex;
  CondVar changed, ended;
  std::deque<UniqueFunction<void()>> tasks TREADLE_GUARDED_BY(mutex);
  size_t threads TREADLE_GUARDED_BY(mutex) = 0;
  size_t idle TREADLE_GUARDED_BY(mutex) = 0;
  bool stopping TREADLE_GUARDED_BY(mutex) = false;
};

ThreadCache::ThreadCache(Duration keep, size_t most) : state_(std::make_shared<State>(keep, most)) {}

ThreadCache::~ThreadCache() {
  MutexLock lock(state_->mutex);
  state_->stopping = true;
  state_->changed.notifyAll();
  while (state_->threads > 0) state_->ended.wait(lock);
}

bool ThreadCache::run(UniqueFunction<void()>& task) {
  MutexLock lock(state_->mutex);
  try {
    if (state_->idle <= state_->tasks.size()) {
      if (state_->threads >= state_->most) return false;
      std::thread([state = state_] { threadLoop(state); }).detach();
      ++state_->threads;
    }
    state_->tasks.push_back(std::move(task));
  } catch (const std::system_error&) {
    return false;
  } catch (const std::bad_alloc&) {
    return false;
  }
  state_->changed.notifyOne();
  return true;
}

void ThreadCache::threadLoop(const std::shared_ptr<State>& state) {
  MutexLock lock(state->mutex);
  for (bool waited = false;; waited = false) {
    TimePoint until = deadlineAfter(state->keep);
    ++state->idle;
    while (state->tasks.empty() && !state->stopping && !waited) waited = !state->changed.waitUntil(lock, until);
    --state->idle;
    if (state->tasks.empty()) break;
    UniqueFunction<void()> task = std::move(state->tasks.front());
    state->tasks.pop_front();
    lock.unlock();
    task();
    task = {};  // what it holds goes before it counts as ended
    lock.lock();
  }
  --state->threads;
  state->ended.notifyAll();
}

}  // namespace treadle::io

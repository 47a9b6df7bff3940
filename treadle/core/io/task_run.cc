#include "treadle/core/io/task_run.h"

#include <atomic>
#include <utility>

namespace treadle::io {

namespace {

// Of the stretch that runs on this thread: what it goes on with.
thread_local std::coroutine_handle<>* nextOfThread = nullptr;

}  // namespace

// One await, ended by what is awaited or by cancelling, whichever comes first. Who comes second holds nothing.
struct TaskRun::Awaiting {
  Awaiting(std::shared_ptr<TaskRun> task, std::coroutine_handle<> place) : run(std::move(task)), at(place) {}

  void end() {
    if (over.exchange(true)) return;
    std::shared_ptr<TaskRun> task = std::move(run);
    task->post(at);
  }

  std::atomic<bool> over = false;
  std::shared_ptr<TaskRun> run;
  const std::coroutine_handle<> at;
};

TaskRun::~TaskRun() {
  if (root_) root_.destroy();
}

void TaskRun::begin() {
  auto self = shared_from_this();  // for this stretch: another thread may run the next one, and end it, meanwhile
  run(root_);
}

void TaskRun::goOnWith(std::coroutine_handle<> next) { *nextOfThread = next; }

// Coroutines let no exception out. One may begin another run on this thread.
void TaskRun::run(std::coroutine_handle<> at) {
  std::coroutine_handle<> next;
  std::coroutine_handle<>* before = std::exchange(nextOfThread, &next);
  for (; at; at = std::exchange(next, nullptr)) at.resume();
  nextOfThread = before;
}

void TaskRun::cancel() {
  UniqueFunction<void()> cancelAwaited;
  {
    MutexLock lock(mutex_);
    cancelled_ = true;
    cancelAwaited = std::exchange(cancelAwaited_, {});
  }
  if (cancelAwaited) cancelAwaited();
}

bool TaskRun::cancelled() const {
  MutexLock lock(mutex_);
  return cancelled_;
}

// From `onReady` on another thread may run the coroutine: nothing of its frame is touched after that.
void TaskRun::await(FutureCore& awaited, UniqueFunction<void()> cancelAwaited, std::coroutine_handle<> at) {
  auto awaiting = std::make_shared<Awaiting>(shared_from_this(), at);
  if (!cancelAwaited) cancelAwaited = [awaiting] { awaiting->end(); };
  {
    MutexLock lock(mutex_);
    if (!cancelled_) cancelAwaited_ = std::exchange(cancelAwaited, {});
  }
  awaited.onReady([awaiting] { awaiting->end(); });
  if (cancelAwaited) cancelAwaited();  // it was cancelled a moment ago
}

void TaskRun::post(std::coroutine_handle<> at) {
  UniqueFunction<void()> notNeeded;
  {
    MutexLock lock(mutex_);
    notNeeded = std::exchange(cancelAwaited_, {});
  }
  post_([self = shared_from_this(), at] { self->run(at); });
}

}  // namespace treadle::io

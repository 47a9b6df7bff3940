#pragma once
// The life of one running Task: where it goes on when what it awaits is ready, and how it is cancelled. It owns the
// coroutine's frame; what holds the run are the stretches that are posted and the futures that are awaited, so when
// the pool has gone or nothing will ever go on, the frame goes too.
//
// Any thread may call anything but `own` and `begin`. Budget of an await of something that is not ready: an allocation
// for what ends it and one for its place among the future's continuations, two locks here, one of the future, a task of
// the pool.

#include <coroutine>
#include <functional>
#include <memory>

#include "treadle/core/base/mutex.h"
#include "treadle/core/base/unique_function.h"
#include "treadle/core/io/future.h"

namespace treadle::io {

class TaskRun : public std::enable_shared_from_this<TaskRun> {
 public:
  // Runs a stretch of the task in the pool, or drops it when that has gone.
  using Post = std::function<void(UniqueFunction<void()>)>;

  // `keep` lives as long as the coroutine: what its parameters refer to.
  TaskRun(Post post, std::shared_ptr<void> keep) : keep_(std::move(keep)), post_(std::move(post)) {}
  ~TaskRun();
  TaskRun(const TaskRun&) = delete;
  TaskRun& operator=(const TaskRun&) = delete;

  // Takes over the outermost coroutine. Once.
  void own(std::coroutine_handle<> root) { root_ = root; }
  // Runs the first stretch on this thread. Once.
  void begin();

  // The next await throws CancelledError; what is awaited now is cancelled.
  void cancel();
  bool cancelled() const;

  // Goes on at `at` when `awaited` is ready. `cancelAwaited` makes it so if the task is cancelled first.
  // Without it the task goes on alone when it is cancelled: what is awaited may be others' too.
  void await(FutureCore& awaited, UniqueFunction<void()> cancelAwaited, std::coroutine_handle<> at);

  // Called by a coroutine that suspends: this thread goes on with that one. A stretch is a loop over such steps, and
  // not coroutines that resume each other, which would use up the stack where the compiler does not turn calls at the
  // end of a function into jumps.
  static void goOnWith(std::coroutine_handle<> next);

 private:
  struct Awaiting;

  void run(std::coroutine_handle<> at);
  void post(std::coroutine_handle<> at);

  const std::shared_ptr<void> keep_;
  const Post post_;
  std::coroutine_handle<> root_;
  mutable Mutex mutex_;
  bool cancelled_ TREADLE_GUARDED_BY(mutex_) = false;
  UniqueFunction<void()> cancelAwaited_ TREADLE_GUARDED_BY(mutex_);
};

}  // namespace treadle::io

#include "treadle/train/ddp/replica_threads.h"

#include <ATen/Parallel.h>

#include <latch>
#include <mutex>
#include <system_error>

#include "treadle/core/base/error.h"

namespace treadle::ddp {
namespace {

// Note [Intra-op threads]
// at::set_num_threads counts for the thread that calls it, and for those that begin to use libtorch later. A thread of
// its own reads what new threads get, waits, and sets that again: the caller keeps its number, and nothing has to be
// started for the way back, which so cannot fail. One set at a time, or a second one would read what the first has set.
class NumberOfNewThreads {
 public:
  NumberOfNewThreads() : oneAtATime_(mutex()), keeper_([this] { keep(); }) { hasRead_.wait(); }
  ~NumberOfNewThreads() {
    isOver_.count_down();
    keeper_.join();
  }
  NumberOfNewThreads(const NumberOfNewThreads&) = delete;
  NumberOfNewThreads& operator=(const NumberOfNewThreads&) = delete;

 private:
  static std::mutex& mutex() {
    static std::mutex mutex;
    return mutex;
  }
  void keep() {
    const int count = at::get_num_threads();
    hasRead_.count_down();
    isOver_.wait();
    at::set_num_threads(count);
  }

  const std::lock_guard<std::mutex> oneAtATime_;
  std::latch hasRead_{1}, isOver_{1};
  std::thread keeper_;
};

}  // namespace

ReplicaThreads::ReplicaThreads(int count, int intraOpThreads) : outcomes_(static_cast<size_t>(count)) {
  try {
    const NumberOfNewThreads stays;
    start(count);
    const std::vector<Status> limited = run([&](int) {
      at::get_num_threads();  // makes libtorch begin in this thread: its first operator would undo what follows
      at::set_num_threads(intraOpThreads);
    });
    for (const Status& status : limited) throwIfError(status);
  } catch (const std::system_error& error) {
    end();
    raise(resourceExhausted("the threads of " + std::to_string(count) +
                            " replicas could not be started: " + error.what()));
  } catch (...) {
    end();
    throw;
  }
}

ReplicaThreads::~ReplicaThreads() { end(); }

void ReplicaThreads::start(int count) {
  threads_.reserve(static_cast<size_t>(count));
  for (int thread = 0; thread < count; ++thread) threads_.emplace_back([this, thread] { serve(thread); });
}

void ReplicaThreads::end() {
  {
    MutexLock lock(mutex_);
    isEnding_ = true;
    changed_.notifyAll();
  }
  for (std::thread& thread : threads_) thread.join();
}

std::vector<Status> ReplicaThreads::run(const std::function<void(int)>& task) {
  MutexLock lock(mutex_);
  task_ = &task;
  running_ = static_cast<int>(threads_.size());
  ++round_;
  changed_.notifyAll();
  while (running_ > 0) changed_.wait(lock);
  return outcomes_;
}

void ReplicaThreads::serve(int thread) {
  MutexLock lock(mutex_);
  for (uint64_t served = 0;; served = round_) {
    while (!isEnding_ && round_ == served) changed_.wait(lock);
    if (isEnding_) return;
    const std::function<void(int)>& task = *task_;
    lock.unlock();
    Status& outcome = outcomes_[static_cast<size_t>(thread)];
    try {
      task(thread);
      outcome = {};
    } catch (...) {
      outcome = statusOfCurrentException("a replica");
    }
    lock.lock();
    if (--running_ == 0) changed_.notifyAll();
  }
}

}  // namespace treadle::ddp

#pragma once
// The threads in which the replicas of a module compute: one for each, for as long as this lives. libtorch's intra-op
// threads multiply with them, so each has a share of these. Used by one thread at a time.

#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

#include "treadle/core/base/mutex.h"
#include "treadle/core/base/status.h"

namespace treadle::ddp {

class ReplicaThreads {
 public:
  // Starts `count` threads, in each of which libtorch uses `intraOpThreads` threads. Other threads of the process keep
  // theirs, and later ones get what they would have got; one that begins to use libtorch just meanwhile may get
  // `intraOpThreads`. Constructed in any thread, but not while the program calls at::set_num_threads. ResourceError:
  // the system starts no more threads.
  ReplicaThreads(int count, int intraOpThreads);
  // Ends them, and waits until they have ended.
  ~ReplicaThreads();
  ReplicaThreads(const ReplicaThreads&) = delete;
  ReplicaThreads& operator=(const ReplicaThreads&) = delete;

  // Calls `task(i)` in thread i, for all at once. Returns when all have returned, with what each has thrown.
  std::vector<Status> run(const std::function<void(int)>& task);

 private:
  void start(int count);
  void end();
  void serve(int thread);

  Mutex mutex_;
  CondVar changed_;
  const std::function<void(int)>* task_ TREADLE_GUARDED_BY(mutex_) = nullptr;
  uint64_t round_ TREADLE_GUARDED_BY(mutex_) = 0;  // how many tasks there were
  int running_ TREADLE_GUARDED_BY(mutex_) = 0;
  bool isEnding_ TREADLE_GUARDED_BY(mutex_) = false;
  std::vector<Status> outcomes_;  // each is written by its thread while it runs
  std::vector<std::thread> threads_;
};

}  // namespace treadle::ddp

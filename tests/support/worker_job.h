#pragma once
// Several workers in one process, joined over loopback like processes of a job: what tests of calls between
// workers run on. For tests that link core/worker; tensor_job.h has the same for workers with tensors.

#include <gtest/gtest.h>

#include <functional>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/expect_error.h"
#include "tests/support/free_port.h"
#include "treadle/core/worker/worker.h"

namespace treadle::test {

// What worker `rank` of a job of `size` on this host joins with.
inline JoinOptions joinOptions(std::string name, int rank, int size, uint16_t port, const Functions& functions = {}) {
  JoinOptions options;
  options.name = std::move(name);
  options.functions = functions;
  options.launch = Launch{rank, size, "127.0.0.1", port, ""};
  // Machines that run tests are busy: nobody is to be thought lost for being slow.
  options.joinTimeout = options.rpcTimeout = options.heartbeatTimeout = std::chrono::seconds(60);
  return options;
}

class WorkerJob {
 public:
  using Join = std::function<std::shared_ptr<Worker>(JoinOptions)>;
  using Adjust = std::function<void(JoinOptions&)>;  // called for each worker, on one thread

  // Worker i is called names[i] and has rank i; all have the same functions.
  explicit WorkerJob(
      std::vector<std::string> names, const Functions& functions = {}, const Adjust& adjust = {},
      const Join& join = [](JoinOptions options) { return Worker::join(std::move(options)); })
      : names_(std::move(names)) {
    uint16_t port = freePort();
    std::vector<std::future<std::shared_ptr<Worker>>> joining;
    for (size_t i = 0; i < names_.size(); ++i) {
      auto options = joinOptions(names_[i], static_cast<int>(i), static_cast<int>(names_.size()), port, functions);
      if (adjust) adjust(options);
      joining.push_back(std::async(std::launch::async, [&join, options] { return join(options); }));
    }
    for (auto& worker : joining) workers_.push_back(worker.get());
  }

  // The job ends well unless a test failed or took a worker away: then nobody is waited for.
  ~WorkerJob() {
    if (killed_ || std::uncaught_exceptions() > 0) return;
    try {
      shutdown();
    } catch (const Error& error) {
      ADD_FAILURE() << "the job did not end well: " << error.what();
    }
  }

  Worker& operator[](size_t rank) { return *workers_[rank]; }
  size_t size() const { return workers_.size(); }
  const std::vector<std::string>& names() const { return names_; }

  // `f(worker)` for each worker that is there, on a thread of its own; rethrows the first failure.
  template <class F>
  void onAll(F f) {
    onFirst(workers_.size(), std::move(f));
  }
  // The same for those whose rank is below `count`. Meanwhile the others may be killed.
  template <class F>
  void onFirst(size_t count, F f) {
    std::vector<std::future<void>> running;
    for (size_t rank = 0; rank < count; ++rank)
      if (Worker* worker = workers_[rank].get())
        running.push_back(std::async(std::launch::async, [&f, worker] { f(*worker); }));
    for (auto& one : running) one.wait();
    for (auto& one : running) one.get();
  }

  void shutdown() {
    onAll([](Worker& worker) { worker.shutdown({.timeout = std::chrono::seconds(60)}); });
  }

  // It ends without a shutdown.
  void kill(size_t rank) {
    killed_ = true;
    workers_[rank].reset();
  }

 protected:
  const std::vector<std::shared_ptr<Worker>>& workers() const { return workers_; }

 private:
  const std::vector<std::string> names_;
  std::vector<std::shared_ptr<Worker>> workers_;
  bool killed_ = false;
};

}  // namespace treadle::test

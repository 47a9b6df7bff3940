#pragma once
// A job in one process (worker_job.h, tensor_job.h) whose last workers are summation servers.

#include <string>
#include <utility>
#include <vector>

#include "tests/support/worker_job.h"

namespace treadle::test {

// `Base`: WorkerJob or TensorJob.
template <class Base>
class JobWithServers : public Base {
 public:
  // Workers `prefix`0, `prefix`1, ... and servers s0, s1, ..., which have the highest ranks. `more`: what the base
  // takes between its functions and the adjustment of options.
  template <class... More>
  JobWithServers(const std::string& prefix, int workers, int servers, More... more)
      : Base(namesOf(prefix, workers, servers), {}, std::move(more)...,
             [servers](JoinOptions& options) { options.launch->servers = servers; }),
        workers_(static_cast<size_t>(workers)) {}

  // `f(worker)` for each that is no server, on a thread of its own.
  template <class F>
  void onWorkers(F f) {
    this->onFirst(workers_, std::move(f));
  }
  Worker& server(size_t number) { return (*this)[workers_ + number]; }
  void killServer(size_t number) { this->kill(workers_ + number); }
  std::vector<std::string> workerNames() const {
    return {this->names().begin(), this->names().begin() + static_cast<std::ptrdiff_t>(workers_)};
  }

 private:
  static std::vector<std::string> namesOf(const std::string& prefix, int workers, int servers) {
    std::vector<std::string> names;
    for (int i = 0; i < workers; ++i) names.push_back(prefix + std::to_string(i));
    for (int i = 0; i < servers; ++i) names.push_back("s" + std::to_string(i));
    return names;
  }

  const size_t workers_;
};

}  // namespace treadle::test

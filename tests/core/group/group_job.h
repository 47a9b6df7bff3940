#pragma once
// Workers in one process with nothing but their group services, and helpers that run one operation on all of them.

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/support/expect_error.h"
#include "tests/support/gate.h"
#include "tests/support/local_job.h"
#include "tests/support/seeds.h"
#include "treadle/core/group/group.h"
#include "treadle/core/group/group_service.h"

namespace treadle::test {

// One worker as a group sees it.
class GroupWorker final : public group::Job {
 public:
  explicit GroupWorker(LocalWorker& worker) : service_(*worker.membership, *worker.reactor, *worker.executor) {}
  group::GroupService& groups() override { return service_; }

 private:
  group::GroupService service_;
};

class GroupJob {
 public:
  // The receiver of a worker's messages, which passes them on to the worker's group service; by default that service.
  using Between = std::function<cluster::MessageHandler&(int rank, group::GroupService& service)>;

  explicit GroupJob(int size, LocalJobOptions options = {}, const Between& between = {})
      : job_(std::make_unique<LocalJob>(
            size,
            [&](LocalWorker& worker) {
              workers_.push_back(std::make_unique<GroupWorker>(worker));
              group::GroupService& service = workers_.back()->groups();
              cluster::MessageHandler* receiver = &service;
              if (between) receiver = &between(worker.membership->self().rank, service);
              worker.membership->setHandler(link::Subject::kGroup, *receiver);
            },
            options)) {}

  ~GroupJob() {
    for (auto& worker : workers_) worker->groups().close(cancelled("the test is over"));
    job_.reset();  // no handler runs any more
  }

  // Groups that are made after this have their members on so many hosts, as many on each.
  void spreadOver(int hosts) {
    for (auto& worker : workers_)
      worker->groups().setCosts(
          {}, [hosts, size = size()](int rank) { return std::to_string(int64_t{rank} * hosts / size); });
  }

  int size() const { return job_->size(); }
  LocalJob& local() { return *job_; }
  group::Job& worker(int rank) { return *workers_[static_cast<size_t>(rank)]; }

  ProcessGroup make(int rank, GroupOptions options = {}) {
    return ProcessGroup::make(worker(rank), job_->names(), std::move(options));
  }
  // The group of all workers, as each of them has it.
  std::vector<ProcessGroup> makeAll(const GroupOptions& options = {}) {
    std::vector<ProcessGroup> groups;
    for (int rank = 0; rank < size(); ++rank) groups.push_back(make(rank, options));
    return groups;
  }

 private:
  std::vector<std::unique_ptr<GroupWorker>> workers_;
  std::unique_ptr<LocalJob> job_;
};

// Longer than anything here takes, also under a sanitizer on a busy machine; a test that waits so long has failed.
inline constexpr Duration kPatience = std::chrono::seconds(100);

inline void waitAll(std::vector<Future<void>>& futures) {
  for (Future<void>& future : futures) future.wait(kPatience);
}

// Starts the operation of one member.
using Operate = std::function<Future<void>(const ProcessGroup& group, size_t rank)>;

inline std::vector<Future<void>> startOnAll(const std::vector<ProcessGroup>& groups, const Operate& operate) {
  std::vector<Future<void>> futures;
  for (size_t rank = 0; rank < groups.size(); ++rank) futures.push_back(operate(groups[rank], rank));
  return futures;
}
// And waits for all.
inline void onAll(const std::vector<ProcessGroup>& groups, const Operate& operate) {
  std::vector<Future<void>> futures = startOnAll(groups, operate);
  waitAll(futures);
}

// Why the operation failed; OK when it did not. It must have ended.
inline Status failureOf(Future<void> future) {
  try {
    future.wait(kPatience);
  } catch (const Error& error) {
    if (!future.ready()) ADD_FAILURE() << waitedInVain("an operation did not end").message();
    return error.status();
  }
  return {};
}

}  // namespace treadle::test

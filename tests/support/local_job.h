#pragma once
// Several workers' memberships in one process, joined by real sockets: for each ordered pair of ranks a socket pair,
// one end attached at the first as the connection of its calls, the other at the second as one that it serves; a
// worker is connected to itself like that too. Each has its own reactor and threads. Rooms above cluster hang their
// handlers in by a callback that runs before anything is attached.

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/readable.h"
#include "treadle/core/base/error.h"
#include "treadle/core/cluster/membership.h"
#include "treadle/core/io/executor.h"
#include "treadle/core/io/socket.h"

namespace treadle::test {

class LocalWorker {
 public:
  LocalWorker(WorkerInfo self, int worldSize, const cluster::MembershipOptions& options,
              io::ExecutorOptions executorOptions)
      : reactor(valueOrThrow(io::Reactor::make())),
        membership(std::make_unique<cluster::Membership>(*reactor, std::move(self), worldSize, options)),
        executor(std::make_unique<io::Executor>(*reactor, executorOptions)) {}

  // In this order they are destroyed last.
  std::unique_ptr<io::Reactor> reactor;
  std::unique_ptr<cluster::Membership> membership;
  std::unique_ptr<io::Executor> executor;
};

struct LocalJobOptions {
  cluster::MembershipOptions membership{.heartbeatTimeout = std::chrono::seconds(60), .connection = {}};
  io::ExecutorOptions executor = {};
  int sendBufferBytes = 0;  // of the sockets; 0: the system's
  bool tcp = false;         // over the loopback, in place of socket pairs
};

class LocalJob {
 public:
  // `addHandlers(worker)` sets the handlers of each worker's membership. Workers are called "w0", "w1", ...
  LocalJob(int size, const std::function<void(LocalWorker&)>& addHandlers, LocalJobOptions options = {}) {
    for (int rank = 0; rank < size; ++rank) {
      workers_.push_back(
          std::make_unique<LocalWorker>(WorkerInfo{nameOf(rank), rank}, size, options.membership, options.executor));
      addHandlers(*workers_.back());
    }
    for (int from = 0; from < size; ++from)
      for (int to = 0; to < size; ++to) join(from, to, options);
  }

  ~LocalJob() {
    // A worker that goes is not lost to the others: the test is over.
    for (auto& worker : workers_) worker->membership->finish();
    for (auto& worker : workers_) worker->executor->stop();
    for (auto& worker : workers_) worker->membership->close("", Clock::now());
  }

  static std::string nameOf(int rank) { return "w" + std::to_string(rank); }

  int size() const { return static_cast<int>(workers_.size()); }
  LocalWorker& worker(int rank) { return *workers_[static_cast<size_t>(rank)]; }
  std::vector<std::string> names() const {
    std::vector<std::string> names;
    for (int rank = 0; rank < size(); ++rank) names.push_back(nameOf(rank));
    return names;
  }

  // `rank` vanishes without a word, as a killed process would: its threads stop and its sockets close. What waits
  // there waits on. Not from a thread of a worker.
  void kill(int rank) {
    worker(rank).membership->finish();  // the dead do not notice that they have lost the others
    worker(rank).executor->stop();
    for (int peer = 0; peer < size(); ++peer) {
      auto connection = worker(rank).membership->outgoing(peer);
      if (connection.ok() && peer != rank) (*connection)->close(peerLost(nameOf(peer), "the test killed this worker"));
    }
  }

 private:
  static std::pair<io::Fd, io::Fd> connectedByTcp() {
    const io::Fd listener = valueOrThrow(io::listenOn(valueOrThrow(io::Address::parse("tcp://127.0.0.1:0"))));
    const io::Address address = valueOrThrow(io::Address::ofSocket(listener.get()));
    io::Fd caller = valueOrThrow(io::connectTo(address, deadlineAfter(kHangs)));
    EXPECT_TRUE(readable(listener.get(), "a connection"));
    return {std::move(caller), valueOrThrow(io::acceptFrom(listener.get()))};
  }

  static std::pair<io::Fd, io::Fd> connectedPair() {
    int ends[2] = {-1, -1};
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends), 0);
    return {io::Fd(ends[0]), io::Fd(ends[1])};
  }

  void join(int from, int to, const LocalJobOptions& options) {
    auto [caller, serving] = options.tcp ? connectedByTcp() : connectedPair();
    for (const io::Fd* end : {&caller, &serving}) {
      if (options.sendBufferBytes == 0) continue;
      const int bytes = options.sendBufferBytes;
      ASSERT_EQ(::setsockopt(end->get(), SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes), 0);
    }
    attach(to, from, std::move(serving), link::Connection::Kind::kServing);
    attach(from, to, std::move(caller), link::Connection::Kind::kCalls);
  }

  void attach(int at, int peer, io::Fd fd, link::Connection::Kind kind) {
    Status attached = worker(at).membership->attach({nameOf(peer), peer}, std::move(fd), kind);
    ASSERT_TRUE(attached.ok()) << attached.toString();
  }

  std::vector<std::unique_ptr<LocalWorker>> workers_;
};

}  // namespace treadle::test

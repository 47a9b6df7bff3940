#pragma once
// A message handler that keeps what it was given, and what a membership needs to be tried without a job around it.

#include <sys/socket.h>

#include "tests/support/gate.h"
#include "treadle/core/cluster/membership.h"

namespace treadle::cluster {

class RecordingHandler final : public MessageHandler {
 public:
  void onMessage(int rank, const std::shared_ptr<link::Connection>& from, link::Message message) override {
    if (answer) answer(rank, *from, message);
    {
      MutexLock lock(mutex_);
      messages_.emplace_back(rank, std::move(message));
    }
    arrived.add();
  }
  void onLost(int rank, const Status& why) override {
    {
      MutexLock lock(mutex_);
      losses_.emplace_back(rank, why);
    }
    lost.add();
  }
  std::vector<std::pair<int, link::Message>> messages() const {
    MutexLock lock(mutex_);
    return messages_;
  }
  std::vector<std::pair<int, Status>> losses() const {
    MutexLock lock(mutex_);
    return losses_;
  }

  std::function<void(int, link::Connection&, const link::Message&)> answer;  // set before the first message
  test::Counter arrived, lost;

 private:
  mutable Mutex mutex_;
  std::vector<std::pair<int, link::Message>> messages_;
  std::vector<std::pair<int, Status>> losses_;
};

inline std::pair<io::Fd, io::Fd> socketPair() {
  int ends[2];
  EXPECT_EQ(0, ::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends));
  return {io::Fd(ends[0]), io::Fd(ends[1])};
}

}  // namespace treadle::cluster

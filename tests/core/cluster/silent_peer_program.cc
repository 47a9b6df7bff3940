// A member of a job in a process of its own, which the test stops and lets go on: silent_peer_program CALLS SERVES
// HEARTBEAT_TIMEOUT_MS. Its two sockets are the descriptors given as arguments: the one that it calls on, the one that
// it serves. Says "heard" of each message. Ends with code 3 when it has lost the test.

#include <cstdlib>
#include <iostream>

#include "treadle/core/base/error.h"
#include "treadle/core/cluster/membership.h"

namespace {

using namespace treadle;

class ExitWhenLost final : public cluster::MessageHandler {
 public:
  void onMessage(int, const std::shared_ptr<link::Connection>&, link::Message) override {
    std::cout << "heard" << std::endl;
  }
  void onLost(int, const Status&) override { std::_Exit(3); }
};

}  // namespace

int main(int, char** arguments) {
  auto reactor = valueOrThrow(io::Reactor::make());
  const std::chrono::milliseconds heartbeatTimeout(std::atoi(arguments[3]));
  cluster::Membership membership(*reactor, {"child", 1}, 2, {.heartbeatTimeout = heartbeatTimeout, .connection = {}});
  ExitWhenLost handler;
  membership.setHandler(link::Subject::kRpc, handler);
  WorkerInfo parent{"parent", 0};
  throwIfError(membership.attach(parent, io::Fd(std::atoi(arguments[1])), link::Connection::Kind::kCalls));
  throwIfError(membership.attach(parent, io::Fd(std::atoi(arguments[2])), link::Connection::Kind::kServing));
  membership.startWatch();
  std::cout << "watching" << std::endl;
  for (;;) reactor->poll();
}

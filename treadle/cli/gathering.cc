#include "treadle/cli/gathering.h"

#include <algorithm>

namespace treadle::cli {
namespace {

using namespace std::chrono_literals;

constexpr Duration kFarewell = 1s;
constexpr const char* kUntilDone = "treadle.untilDone";

}  // namespace

Gathering::Gathering(const std::string& name, const Launch& launch, Functions functions, Duration timeout,
                     std::optional<Channels> channels) {
  JoinOptions options;
  options.name = name + std::to_string(launch.rank);
  options.functions = std::move(functions.add<&Gathering::untilDone>(kUntilDone));
  options.launch = launch;
  options.joinTimeout = options.rpcTimeout = timeout;
  options.heartbeatTimeout = std::clamp<Duration>(timeout / 2, 100ms, 5s);
  options.channels = channels;
  worker_ = Worker::join(std::move(options), {.interceptor = {}, .functions = {}, .state = done_});
}

// An answer that comes when rank 0 is done. A barrier would end with the first worker that is lost.
Future<void> Gathering::untilDone(CallContext& call) {
  return std::any_cast<Done>(call.worker().extensionState())->future();
}

void Gathering::waitForEnd(Duration limit) { worker_->with({.timeout = limit}).callNamed<void>(0, kUntilDone); }

void Gathering::end() {
  done_->set();
  try {
    worker_->shutdown({.timeout = kFarewell});
  } catch (const Error&) {  // who was lost has been told by those who needed it
  }
}

}  // namespace treadle::cli

#include "treadle/core/rpc/attempts.h"

#include <algorithm>

namespace treadle::rpc {
namespace {

constexpr Duration kFirstPause = std::chrono::milliseconds(10), kLongestPause = std::chrono::seconds(1);

}  // namespace

Attempts::Attempts(Engine& engine, const Functions::Entry& function, const CallOptions& options,
                   const std::string* name)
    : engine_(engine), options_(options), name_(name), left_(options.attempts), pause_(kFirstPause) {
  if (left_ < 1)
    raise(invalidArgument("CallOptions::attempts is " + std::to_string(left_) + "; it must be at least 1"));
  if (left_ > 1 && !function.idempotent)
    raise(failedPrecondition("'" + function.name +
                             "' is to be tried several times and may not be: add it with addIdempotent, or declare it "
                             "with declareIdempotent, if it may run twice without harm"));
}

void Attempts::afterFailure(const Error& error, int callee) {
  bool again = --left_ > 0;
  const bool fromThere = !error.trail().empty();  // else it was found here: the limit has passed, or the callee is lost
  switch (error.code()) {
    case Code::kDeadlineExceeded: again = again && !fromThere; break;
    case Code::kResourceExhausted:
      again = again && fromThere;
      if (again) engine_.after(pause_).wait();
      pause_ = std::min(2 * pause_, kLongestPause);
      break;
    case Code::kPeerLost: again = again && !fromThere && waitForSuccessor(callee, error); break;
    default: again = false;
  }
  if (!again) throw;  // `error`, which is being handled
}

// A call may hear of the loss before the membership has noted it. One whose argument has a lost owner hears of that.
bool Attempts::waitForSuccessor(int callee, const Error& loss) {
  if (name_ == nullptr || loss.worker() != *name_ || !engine_.membership().open()) return false;
  io::Executor::Blocking blocking;
  if (!blocking.status().ok()) return false;
  Duration timeout = options_.timeout.value_or(engine_.rpcTimeout());
  return engine_.membership().awaitName(*name_, deadlineAfter(timeout), callee).ok();
}

}  // namespace treadle::rpc

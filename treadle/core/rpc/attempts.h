#pragma once
// Tries a blocking call of an idempotent function again (CallOptions::attempts). On the thread that calls.

#include <string>

#include "treadle/core/rpc/engine.h"

namespace treadle::rpc {

class Attempts {
 public:
  // `name`: the callee's, where the call was given one. ArgumentError for less than one attempt; StateError when
  // several are asked for of a function that is not idempotent.
  Attempts(Engine& engine, const Functions::Entry& function, const CallOptions& options, const std::string* name);

  // One, of the worker of this rank, has failed. Returns when the next may be made; throws `error` when there is none
  // left or no hope in it: after TimeoutError at once, after ResourceError in a while, after PeerLostError when another
  // worker of that name has joined the open job, for which it waits as long as an attempt may take.
  void afterFailure(const Error& error, int callee);

 private:
  bool waitForSuccessor(int callee, const Error& loss);

  Engine& engine_;
  const CallOptions options_;
  const std::string* const name_;
  int left_;
  Duration pause_;
};

}  // namespace treadle::rpc

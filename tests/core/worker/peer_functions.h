#pragma once
// What the worker in peer_program.cc offers.

#include <signal.h>
#include <unistd.h>

#include "treadle/core/worker/worker.h"

namespace treadle::test {

inline int peerAdd(int a, int b) { return a + b; }
inline void peerDie() { ::kill(::getpid(), SIGKILL); }
inline void peerWait() {
  blocking([] { ::pause(); });
}

inline Functions peerFunctions() {
  Functions functions;
  return functions.add<&peerAdd>("add").add<&peerDie>("die").add<&peerWait>("wait");
}

}  // namespace treadle::test

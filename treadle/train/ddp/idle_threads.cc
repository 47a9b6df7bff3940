#include "treadle/train/ddp/idle_threads.h"

#include <ATen/Context.h>
#include <dlfcn.h>
#include <pthread.h>

#include <atomic>

namespace treadle::ddp {
namespace {

// OpenMP would wait for threads that a child of fork(2) does not have.
constinit std::atomic<bool> isForked = false;
[[maybe_unused]] const int kForkHandler = ::pthread_atfork(nullptr, nullptr, [] { isForked = true; });

}  // namespace

// Not linked: that might be another library of OpenMP than libtorch's, which has threads of its own. This is the one
// that a call of libtorch finds.
void endIdleThreads() {
  using PauseAll = int (*)(int kind);
  static const auto pauseAll = reinterpret_cast<PauseAll>(::dlsym(RTLD_DEFAULT, "omp_pause_resource_all"));
  constexpr int kSoft = 1;  // omp_pause_soft (OpenMP 5.0, section 3.2.44)
  if (pauseAll != nullptr && at::hasOpenMP() && !isForked) pauseAll(kSoft);
}

}  // namespace treadle::ddp

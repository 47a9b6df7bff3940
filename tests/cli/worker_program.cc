// A worker whose life the test directs. It tells its name ("worker0"), prints "ready RANK PID" and waits for
// a signal: SIGUSR1 makes it exit with 1, SIGUSR2 with 0. With the argument "deaf" it ignores SIGTERM and
// SIGINT; with "babbling" it sends the launcher garbage first. With the arguments "without" and a rank, the workers of
// the other ranks join the job instead and wait for that one for an hour. They log what rank 0 sees; a failure is the
// line "lost WORKER: ..." and exit code 1. With "late" and a rank, the workers of the other ranks join for 100 ms, and
// that one joins for an hour when SIGUSR1 comes.

#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "treadle/core/base/log.h"
#include "treadle/core/cluster/status_socket.h"
#include "treadle/core/worker/worker.h"

namespace {

constexpr int kBabble = 3'000;  // messages

int join(const treadle::Launch& launch, treadle::Duration timeout) {
  treadle::setLogLevel(treadle::LogLevel::kDebug);
  try {
    treadle::JoinOptions options;
    options.name = "worker" + std::to_string(launch.rank);
    options.joinTimeout = timeout;
    treadle::Worker::join(options);
    return 0;
  } catch (const treadle::Error& error) {
    std::fprintf(stderr, "lost %s: %s\n", error.worker().c_str(), error.what());
    return 1;
  }
}

}  // namespace

int main(int argc, char** argv) {
  auto launch = treadle::Launch::detect();
  if (!launch.ok()) {
    std::fprintf(stderr, "%s\n", launch.status().message().c_str());
    return 3;
  }
  sigset_t awaited;
  sigemptyset(&awaited);
  sigaddset(&awaited, SIGUSR1);
  sigaddset(&awaited, SIGUSR2);
  sigprocmask(SIG_BLOCK, &awaited, nullptr);
  if (argc > 1 && std::strcmp(argv[1], "deaf") == 0) {
    signal(SIGTERM, SIG_IGN);
    signal(SIGINT, SIG_IGN);
  }
  treadle::cluster::tellLauncher("worker" + std::to_string(launch->rank));
  const bool babbles = argc > 1 && std::strcmp(argv[1], "babbling") == 0;
  for (int i = 0; babbles && i < kBabble; ++i) treadle::cluster::tellLauncher(i % 2 == 0 ? "ended\n0\n2" : "\x1b[2J");
  std::printf("ready %d %d\n", launch->rank, getpid());
  std::fflush(stdout);
  const bool others = argc > 2 && std::atoi(argv[2]) != launch->rank;
  if (others && std::strcmp(argv[1], "without") == 0) return join(*launch, std::chrono::hours(1));
  const bool late = argc > 2 && std::strcmp(argv[1], "late") == 0;
  if (others && late) return join(*launch, std::chrono::milliseconds(100));
  int got = 0;
  sigwait(&awaited, &got);
  if (late) return join(*launch, std::chrono::hours(1));
  return got == SIGUSR1 ? 1 : 0;
}

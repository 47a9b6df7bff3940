// A worker whose life the test directs. It tells its name ("worker0"), prints "ready RANK PID" and waits for
// a signal: SIGUSR1 makes it exit with 1, SIGUSR2 with 0. With the argument "deaf" it ignores SIGTERM and
// SIGINT.

#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>

#include "treadle/core/cluster/launch.h"

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
  std::printf("ready %d %d\n", launch->rank, getpid());
  std::fflush(stdout);
  int got = 0;
  sigwait(&awaited, &got);
  return got == SIGUSR1 ? 1 : 0;
}

// A worker of a job with summation servers: sums a tensor of four million floats, several times, and says what the job
// is and what came of it. With the argument "fails" it ends with 3 instead when all have joined. With the argument
// "kills" rank 0 kills, in between, the process that its launcher started last.

#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "treadle/core.h"

namespace {

void killLastChildOfLauncher() {
  const std::string launcher = std::to_string(::getppid());
  std::ifstream children("/proc/" + launcher + "/task/" + launcher + "/children");
  pid_t last = 0;
  for (pid_t child = 0; children >> child;) last = child;
  if (last > 0) ::kill(last, SIGKILL);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const auto worker = treadle::Worker::join({});
    worker->barrier();
    const auto isAskedTo = [&](const char* what) { return argc > 1 && std::strcmp(argv[1], what) == 0; };
    if (isAskedTo("fails")) return 3;
    auto service =
        treadle::SummationService::make(*worker, {}, {{"weight", treadle::group::DataType::kFloat32, 4'000'000}});
    std::vector<float> weight(4'000'000, 1);
    for (int round = 0; round < 20; ++round) {
      if (round == 5 && isAskedTo("kills") && worker->self().rank == 0) killLastChildOfLauncher();
      service.sum("weight", std::span(weight)).wait();
    }
    service.leave().wait();
    std::printf("%zu workers, %zu servers, %g\n", worker->peers().size(), worker->servers().size(),
                static_cast<double>(weight.back()));
    worker->shutdown();
    return 0;
  } catch (const treadle::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}

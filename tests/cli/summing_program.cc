// A worker of a job with summation servers: sums a tensor of four million floats, several times, and says what the job
// is and what came of it. With the argument "fails" it ends with 3 instead when all have joined; with "long" it sums
// some seconds long, and says "under way" after the first sums.

#include <cstdio>
#include <cstring>
#include <vector>

#include "treadle/core.h"

int main(int argc, char** argv) {
  try {
    const auto worker = treadle::Worker::join({});
    worker->barrier();
    const auto isAskedTo = [&](const char* what) { return argc > 1 && std::strcmp(argv[1], what) == 0; };
    if (isAskedTo("fails")) return 3;
    auto service =
        treadle::SummationService::make(*worker, {}, {{"weight", treadle::group::DataType::kFloat32, 4'000'000}});
    std::vector<float> weight(4'000'000, 1);
    const int rounds = isAskedTo("long") ? 100 : 20;
    for (int round = 0; round < rounds; ++round) {
      service.sum("weight", std::span(weight)).wait();
      if (round == 5 && isAskedTo("long")) {
        std::puts("under way");
        std::fflush(stdout);
      }
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

// A doctor that dies as soon as it is asked something: for what the others make of it.

#include <unistd.h>

#include "treadle/cli/doctor.h"

namespace {

treadle::cli::Told die() { ::_exit(3); }

}  // namespace

int main() {
  treadle::JoinOptions options;
  treadle::Launch launch = treadle::valueOrThrow(treadle::Launch::detect());
  options.name = "doctor" + std::to_string(launch.rank);
  options.functions.add<&die>(treadle::cli::kTellFunction);
  auto worker = treadle::Worker::join(std::move(options));
  worker->shutdown({.timeout = std::chrono::seconds(60)});
}

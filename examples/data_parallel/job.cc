#include "examples/data_parallel/job.h"

#include <ATen/Parallel.h>

#include <iostream>
#include <string>
#include <vector>

namespace data_parallel {
namespace {

treadle::ProcessGroup groupOfAll(treadle::Worker& worker) {
  std::vector<std::string> names;
  for (const treadle::WorkerInfo& peer : worker.peers()) names.push_back(peer.name);
  return treadle::ProcessGroup::make(worker, names);
}

}  // namespace

void addOptions(CLI::App& app, TrainOptions& options) {
  app.add_option("--steps", options.steps, "steps of the optimizer")
      ->capture_default_str()
      ->check(CLI::Range(int64_t{2}, int64_t{1} << 40));
  app.add_option("--batch", options.batch, "samples per rank and step")
      ->capture_default_str()
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20));
  app.add_option("--lr", options.learningRate, "learning rate")->capture_default_str()->check(CLI::PositiveNumber);
  app.add_option("--seed", options.seed, "of the first weights and of the order of the samples")->capture_default_str();
}

int runJob(CLI::App& app, int argc, char** argv, const std::function<bool(const treadle::ProcessGroup& group)>& train) {
  CLI11_PARSE(app, argc, argv);
  try {
    at::set_num_threads(1);  // all workers share one machine as a rule
    auto worker = treadle::join({});
    const bool good = train(groupOfAll(*worker));
    worker->shutdown();  // returns when all have come here
    return good ? 0 : 1;
  } catch (const std::exception& error) {
    std::cerr << app.get_name() << ": " << error.what() << std::endl;
    return 1;
  }
}

}  // namespace data_parallel

#include "examples/data_parallel/job.h"

#include <ATen/Parallel.h>

#include <iostream>

#include "examples/common/command_line.h"
#include "examples/common/group_of_all.h"

namespace data_parallel {

int runJob(CLI::App& app, int argc, char** argv, const std::function<bool(const treadle::ProcessGroup& group)>& train) {
  if (const std::optional<int> exitCode = example::parse(app, argc, argv)) return *exitCode;
  try {
    at::set_num_threads(1);  // all workers share one machine as a rule
    auto worker = treadle::join({});
    const bool good = train(example::groupOfAll(*worker));
    worker->shutdown();  // returns when all have come here
    return good ? 0 : 1;
  } catch (const std::exception& error) {
    std::cerr << app.get_name() << ": " << error.what() << std::endl;
    return 1;
  }
}

}  // namespace data_parallel

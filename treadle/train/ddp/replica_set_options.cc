#include "treadle/train/ddp/replica_set_options.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <string>
#include <vector>

#include "treadle/core/base/error.h"
#include "treadle/train/ddp/first_difference.h"

namespace treadle::ddp {
namespace {

constexpr int kMaxReplicas = 256, kMaxIntraOpThreads = 1024;

}  // namespace

const ReplicaSetOptions& checked(const ReplicaSetOptions& options) {
  auto checkRange = [](const char* name, int value, int least, int most) {
    if (value < least || value > most)
      raise(invalidArgument(std::string("ReplicaSetOptions::") + name + " is " + std::to_string(value) +
                            ", and is from " + std::to_string(least) + " to " + std::to_string(most)));
  };
  checkRange("replicas", options.replicas, 1, kMaxReplicas);
  checkRange("intraOpThreads", options.intraOpThreads, 0, kMaxIntraOpThreads);
  if (options.divisor == Divisor::kActiveRanks)
    raise(
        invalidArgument("a ReplicaSet cannot have the divisor kActiveRanks, which counts ranks and not their "
                        "replicas: use kWeights, with the number of samples as the weight"));
  return options;
}

int intraOpThreadsOf(const ReplicaSetOptions& options) {
  return options.intraOpThreads > 0 ? options.intraOpThreads : std::max(1, at::get_num_threads() / options.replicas);
}

void checkNumberOfReplicas(const ProcessGroup& group, const ReplicaSetOptions& options) {
  std::vector<std::string> lines = {std::string("a ReplicaSet with the divisor ") + nameOf(options.divisor)};
  if (options.divisor == Divisor::kWorldSize ||
      (options.divisor != Divisor::kWeights && options.buffers == Buffers::kAverage))
    lines.push_back("ReplicaSetOptions::replicas " + std::to_string(options.replicas));
  if (auto difference = firstDifference(group, lines))
    raise(invalidArgument("the ranks' sets of replicas are not alike: " + *difference));
}

}  // namespace treadle::ddp

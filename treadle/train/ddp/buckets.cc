#include "treadle/train/ddp/buckets.h"

#include <map>
#include <utility>

namespace treadle::ddp {

std::vector<std::vector<size_t>> planBuckets(const std::vector<at::Tensor>& parameters, const BucketLimits& limits) {
  // The bucket that is being filled with the parameters of one dtype and device.
  struct Open {
    size_t bucket = 0, bytes = 0, limit = 0;
  };
  std::map<std::pair<at::ScalarType, std::string>, Open> open;
  std::vector<std::vector<size_t>> buckets;
  for (size_t left = parameters.size(); left > 0; --left) {
    // Backwards: the last layer has its gradients first.
    const size_t index = left - 1, bytes = parameters[index].nbytes();
    auto [found, isFirst] = open.try_emplace({parameters[index].scalar_type(), parameters[index].device().str()});
    Open& filling = found->second;
    if (isFirst || filling.bytes + bytes > filling.limit) {
      filling = {buckets.size(), 0, isFirst ? limits.firstBytes : limits.bytes};
      buckets.emplace_back();
    }
    buckets[filling.bucket].push_back(index);
    filling.bytes += bytes;
  }
  return buckets;
}

}  // namespace treadle::ddp

#include "treadle/train/ddp/buffer_sync.h"

#include <ATen/ops/equal.h>

#include <limits>

#include "treadle/core/base/error.h"
#include "treadle/tensor/collective/collectives.h"
#include "treadle/train/ddp/named_tensors.h"

namespace treadle::ddp {
namespace {

std::vector<Bucket> packsOf(const std::vector<at::Tensor>& buffers) {
  constexpr size_t kUnlimited = std::numeric_limits<size_t>::max();
  const BucketLimits limits{.firstBytes = kUnlimited, .bytes = kUnlimited};
  return makeBuckets(buffers, BucketPlan(buffers, reverseOrder(buffers.size()), limits));
}

bool isAveraged(at::ScalarType dtype) {
  return dtype == at::kHalf || dtype == at::kBFloat16 || dtype == at::kFloat || dtype == at::kDouble;
}

// The mean over all ranks is the weighted one then. Nothing that a rank without a share holds counts, NaN neither.
void weigh(at::Tensor& values, double share) {
  if (share == 0) {
    values.zero_();
  } else if (share != 1) {
    values.mul_(share);
  }
}

}  // namespace

const char* nameOf(Buffers mode) {
  switch (mode) {
    case Buffers::kOnce: return "kOnce";
    case Buffers::kFromRank0: return "kFromRank0";
    case Buffers::kAverage: break;
  }
  return "kAverage";
}

BufferSync::BufferSync(const torch::nn::Module& module, Buffers mode) : mode_(mode) {
  if (mode_ == Buffers::kOnce) return;
  for (const auto& [name, names, tensor] : buffersOf(module)) {
    if (tensor.layout() != at::kStrided || !tensor.device().is_cpu())
      raise(invalidArgument("buffer " + names + " cannot be kept equal, as it is no dense tensor on the CPU: use " +
                            "Buffers::kOnce"));
    buffers_.push_back(tensor);
  }
  packs_ = packsOf(buffers_);
}

void BufferSync::begin(const ProcessGroup& group, const Shares& shares, Operations& operations) {
  for (Bucket& pack : packs_) {
    for (size_t position = 0; position < pack.parameters.size(); ++position)
      pack.views[position].copy_(buffers_[pack.parameters[position]]);
    if (mode_ == Buffers::kAverage && isAveraged(pack.flat.scalar_type())) {
      weigh(pack.flat, shares.ofRanks[static_cast<size_t>(group.rank())]);
      operations.push_back(allReduce(group, pack.flat, ReduceOp::kAverage));
    } else {
      operations.push_back(broadcast(group, pack.flat, shares.authority));
    }
  }
}

void BufferSync::put() {
  for (Bucket& pack : packs_)
    for (size_t position = 0; position < pack.parameters.size(); ++position) {
      at::Tensor& buffer = buffers_[pack.parameters[position]];
      const at::Tensor& now = pack.views[position];
      if (buffer.scalar_type() != now.scalar_type() || !at::equal(buffer, now)) buffer.copy_(now);
    }
}

void BufferSync::renewMemory() { packs_ = packsOf(buffers_); }

}  // namespace treadle::ddp

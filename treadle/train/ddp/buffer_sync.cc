#include "treadle/train/ddp/buffer_sync.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "treadle/core/base/error.h"
#include "treadle/tensor/collective/collectives.h"
#include "treadle/tensor/collective/flat.h"
#include "treadle/train/ddp/any_algorithm.h"
#include "treadle/train/ddp/named_tensors.h"
#include "treadle/train/ddp/same_type.h"

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

// The part of this rank in the weighted mean. Nothing that a rank without a share holds counts, NaN neither.
void weigh(at::Tensor& values, double share) { share == 0 ? values.zero_() : values.mul_(share); }

Hash128 hashOf(const at::Tensor& packed) { return hashed({}, collective::bytesOf(packed)); }

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
    if (!collective::isDenseOnCpu(tensor))
      raise(invalidArgument("buffer " + names + " cannot be kept equal, as it is no dense tensor on the CPU: use " +
                            "Buffers::kOnce"));
    buffers_.push_back(tensor);
    names_.push_back(names);
  }
  packs_ = packsOf(buffers_);
  hashes_.resize(buffers_.size());
}

Status BufferSync::checkUnchanged() const {
  for (const Bucket& pack : packs_)
    for (size_t position = 0; position < pack.parameters.size(); ++position) {
      const size_t index = pack.parameters[position];
      const at::Tensor &was = pack.views[position], &now = buffers_[index];
      if (collective::isDenseOnCpu(now) && haveSameType(now, was)) continue;
      return failedPrecondition("buffer " + names_[index] + " has become another tensor than it was when " +
                                "DistributedDataParallel was constructed, of " + toString(was.scalar_type()) + " " +
                                c10::str(was.sizes()) + ": construct it again, or use Buffers::kOnce");
    }
  return {};
}

void BufferSync::fillPacks() {
  for (Bucket& pack : packs_)
    for (size_t position = 0; position < pack.parameters.size(); ++position) {
      const size_t index = pack.parameters[position];
      pack.views[position].copy_(buffers_[index]);
      hashes_[index] = hashOf(pack.views[position]);
    }
}

void BufferSync::begin(const ProcessGroup& group, const Shares& shares, Operations& operations) {
  if (packs_.empty()) return;
  fillPacks();
  const ProcessGroup chosen = byAnyAlgorithm(group);
  if (mode_ == Buffers::kAverage) beginComparison(chosen, operations);
  for (Bucket& pack : packs_) {
    if (mode_ == Buffers::kAverage && isAveraged(pack.flat.scalar_type())) {
      weigh(pack.flat, shares.ofRanks[static_cast<size_t>(group.rank())]);
      operations.push_back(allReduce(chosen, pack.flat, ReduceOp::kSum));
    } else {
      operations.push_back(broadcast(chosen, pack.flat, shares.authority));
    }
  }
}

// A weighted mean is rounded, so it would change constants a little in each pass.
void BufferSync::beginComparison(const ProcessGroup& group, Operations& operations) {
  bounds_ = at::empty({2, static_cast<int64_t>(sizeof(Hash128) * hashes_.size())}, at::kByte);
  at::Tensor largest = bounds_[0];
  std::memcpy(largest.data_ptr(), hashes_.data(), largest.nbytes());
  bounds_[1].fill_(255).sub_(largest);
  operations.push_back(allReduce(group, bounds_, ReduceOp::kMax));
}

// Whether it has the same bits on all ranks. They know by the largest and the smallest of each byte of their hashes.
bool BufferSync::isAlike(size_t buffer) const {
  if (mode_ != Buffers::kAverage) return false;
  const uint8_t* largest = bounds_.const_data_ptr<uint8_t>() + sizeof(Hash128) * buffer;
  const uint8_t* smallest = largest + bounds_.size(1);
  return std::equal(largest, largest + sizeof(Hash128), smallest,
                    [](uint8_t most, uint8_t least) { return most == 255 - least; });
}

void BufferSync::put() {
  for (Bucket& pack : packs_)
    for (size_t position = 0; position < pack.parameters.size(); ++position) {
      const size_t index = pack.parameters[position];
      at::Tensor& buffer = buffers_[index];
      const at::Tensor& now = pack.views[position];
      if (!isAlike(index) && hashOf(now) != hashes_[index]) buffer.copy_(now);
    }
}

void BufferSync::renewMemory() { packs_ = packsOf(buffers_); }

}  // namespace treadle::ddp

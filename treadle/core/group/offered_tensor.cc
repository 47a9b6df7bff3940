#include "treadle/core/group/offered_tensor.h"

#include <cstring>
#include <vector>

namespace treadle::group {

MutableBytes OfferedTensor::memoryOf(const Range& elements) const {
  const size_t each = sizeOf(signature.dataType);
  return {data_ + elements.begin * each, elements.count() * each};
}

void OfferedTensor::beginSum(uint64_t batch, Future<void> sum) {
  MutexLock lock(mutex_);
  sums_[batch] = std::move(sum);
}

void OfferedTensor::endSum(uint64_t batch) {
  MutexLock lock(mutex_);
  sums_.erase(batch);
}

bool OfferedTensor::inUse() const {
  MutexLock lock(mutex_);
  return !sums_.empty();
}

// Without the lock: what follows the end of a sum takes it.
void OfferedTensor::cancelSums() const {
  std::vector<Future<void>> sums;
  {
    MutexLock lock(mutex_);
    for (const auto& [batch, sum] : sums_) sums.push_back(sum);
  }
  for (Future<void>& sum : sums) sum.cancel();
}

Status OfferedTensor::copyTo(const Range& elements, std::byte* to) const {
  MutexLock lock(copying_);
  if (!released_.ok()) return released_;
  const MutableBytes from = memoryOf(elements);
  if (!from.empty()) std::memcpy(to, from.data(), from.size());
  return {};
}

void OfferedTensor::copyFrom(const Range& elements, const std::byte* from) const {
  MutexLock lock(copying_);
  const MutableBytes to = memoryOf(elements);
  if (released_.ok() && !to.empty()) std::memcpy(to.data(), from, to.size());
}

void OfferedTensor::release(const Status& why) {
  MutexLock lock(copying_);
  if (released_.ok()) released_ = why;
}

}  // namespace treadle::group

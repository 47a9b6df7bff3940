#include "treadle/core/group/batch_memory.h"

#include <algorithm>
#include <bit>
#include <new>
#include <utility>

#include "treadle/core/group/group_core.h"

namespace treadle::group {
namespace {

// Smaller memory is warm, as the allocator keeps it.
constexpr size_t kLeastKeptBytes = size_t{64} << 10;

size_t bytesOfParts(const std::vector<BatchPart>& parts) {
  size_t sizeBytes = 0;
  for (const BatchPart& part : parts) sizeBytes += part.sizeBytes();
  return sizeBytes;
}

}  // namespace

Buffer BatchMemory::take(size_t sizeBytes) {
  Buffer memory = sizeBytes > kLeastKeptBytes ? takeKept(sizeBytes) : Buffer();
  if (memory.data != nullptr && memory.sizeBytes >= sizeBytes) return memory;
  memory = {};  // the new block replaces it
  return allocateBuffer(std::bit_ceil(std::max<size_t>(sizeBytes, 1)));
}

// One that is large enough, or else any; none where none is kept.
Buffer BatchMemory::takeKept(size_t sizeBytes) {
  MutexLock lock(mutex_);
  auto found = std::find_if(kept_.begin(), kept_.end(), [&](const Buffer& one) { return one.sizeBytes >= sizeBytes; });
  if (found == kept_.end()) found = kept_.begin();
  if (found == kept_.end()) return {};
  Buffer memory = std::move(*found);
  kept_.erase(found);
  return memory;
}

void BatchMemory::giveBack(Buffer memory) {
  if (memory.sizeBytes <= kLeastKeptBytes) return;
  MutexLock lock(mutex_);
  if (kept_.size() < kMoving) kept_.push_back(std::move(memory));
}

StagedBatch::StagedBatch(std::vector<BatchPart> parts, std::shared_ptr<BatchMemory> source, std::string owner)
    : parts_(std::move(parts)), source_(std::move(source)), owner_(std::move(owner)) {}

StagedBatch::~StagedBatch() { source_->giveBack(std::move(memory_)); }

Result<Staged> StagedBatch::fill() {
  const size_t sizeBytes = bytesOfParts(parts_);
  try {
    memory_ = source_->take(sizeBytes);
  } catch (const std::bad_alloc&) {
    return resourceExhausted(owner_ + " has no memory for " + std::to_string(parts_.size()) + " tensors of " +
                             std::to_string(sizeBytes) + " bytes that are summed together");
  }
  std::byte* to = memory_.data;
  for (const BatchPart& part : parts_) {
    TREADLE_RETURN_IF_ERROR(part.tensor->copyTo(part.elements, to));
    to += part.sizeBytes();
  }
  const MutableBytes all = memory_.mutableBytes().first(sizeBytes);
  return Staged{all, all};
}

void StagedBatch::putBack() {
  const std::byte* from = memory_.data;
  for (const BatchPart& part : parts_) {
    part.tensor->copyFrom(part.elements, from);
    from += part.sizeBytes();
  }
}

}  // namespace treadle::group

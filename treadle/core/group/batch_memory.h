#pragma once
// The memory in which several tensors are summed together, and the copies from and to the tensors. A large operation
// copies in a task, as it does all that takes long.

#include <memory>
#include <string>
#include <vector>

#include "treadle/core/base/mutex.h"
#include "treadle/core/group/offered_tensor.h"
#include "treadle/core/group/staging.h"

namespace treadle::group {

// Keeps memory of batches that have ended for the next ones: fresh pages cost several times what the copy costs. Any
// thread.
class BatchMemory {
 public:
  // Keeps kMoving blocks at most. Throws std::bad_alloc.
  Buffer take(size_t sizeBytes);
  void giveBack(Buffer memory);

 private:
  Buffer takeKept(size_t sizeBytes);

  Mutex mutex_;
  std::vector<Buffer> kept_ TREADLE_GUARDED_BY(mutex_);
};

// Elements of a tensor that are summed together with others.
struct BatchPart {
  std::shared_ptr<OfferedTensor> tensor;
  Range elements;

  size_t sizeBytes() const { return elements.count() * sizeOf(tensor->signature.dataType); }
};

// The parts lie in the batch's memory one after the other.
class StagedBatch final : public Staging {
 public:
  // `owner`: whose memory it is, for messages.
  StagedBatch(std::vector<BatchPart> parts, std::shared_ptr<BatchMemory> source, std::string owner);
  ~StagedBatch() override;

  // Fails with the reason of the first tensor that has been released, or with ResourceExhausted.
  Result<Staged> fill() override;
  // Tensors that have been released meanwhile are left out.
  void putBack() override;

 private:
  const std::vector<BatchPart> parts_;
  const std::shared_ptr<BatchMemory> source_;
  const std::string owner_;
  Buffer memory_;
};

}  // namespace treadle::group

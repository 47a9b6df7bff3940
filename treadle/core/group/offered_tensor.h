#pragma once
// A tensor that the caller has offered by name, from the call to its future. Held by the member's Fusion and by the
// sums that it takes part in.
//
// The caller's memory is in use by sums in place, which `cancelSums` ends, and for the moment of a copy between it and
// the memory of a batch, which `release` excludes. Thread-safe where the comments say so.

#include <map>
#include <memory>
#include <string>

#include "treadle/core/base/buffer.h"
#include "treadle/core/group/fusion_messages.h"
#include "treadle/core/io/future.h"

namespace treadle::group {

struct OfferLimit {
  Duration timeout{};
  bool untilMatched = false;  // PushPullOptions::timeoutUntilMatched
};

class OfferedTensor {
 public:
  using State = io::FutureState<io::Unit>;

  OfferedTensor(std::string itsName, Signature itsSignature, std::byte* data, OfferLimit itsLimit)
      : name(std::move(itsName)),
        signature(std::move(itsSignature)),
        limit(itsLimit),
        due(deadlineAfter(itsLimit.timeout)),
        data_(data) {}
  ~OfferedTensor() { state->complete(cancelled("this worker has left the job")); }
  OfferedTensor(const OfferedTensor&) = delete;
  OfferedTensor& operator=(const OfferedTensor&) = delete;

  // Sums in place, by batch. Any thread.
  MutableBytes memoryOf(const Range& elements) const;
  void beginSum(uint64_t batch, Future<void> sum);
  void endSum(uint64_t batch);
  bool inUse() const;
  // Each sum fails on all members. Returns when the memory is free, but on a thread that polls or reads maybe earlier.
  void cancelSums() const;

  // Copies elements between the caller's memory and that of a batch, one piece at most, so a lock is held for a moment.
  // After `release` nothing is copied; copyTo then returns the reason. Any thread.
  Status copyTo(const Range& elements, std::byte* to) const;
  void copyFrom(const Range& elements, const std::byte* from) const;
  void release(const Status& why);

  const std::string name;
  const Signature signature;
  const OfferLimit limit;
  const std::shared_ptr<State> state = std::make_shared<State>();

  // In the turn of Fusion's inbox.
  static constexpr uint64_t kNoNumber = UINT64_MAX;
  uint64_t number = kNoNumber;
  TimePoint due;
  size_t parts = 0;          // ordered, and not ended
  bool withdrawn = false;    // this member has asked rank 0 to fail it
  bool awaitsBatch = false;  // it is late, and its last sum may end within a moment
  bool ended = false;        // its future is ready
  Status failure;

 private:
  std::byte* const data_;
  mutable Mutex mutex_;
  std::map<uint64_t, Future<void>> sums_ TREADLE_GUARDED_BY(mutex_);
  mutable Mutex copying_;
  Status released_ TREADLE_GUARDED_BY(copying_);
};

}  // namespace treadle::group

#include "treadle/train/ddp/bucket_ends.h"

#include <algorithm>

namespace treadle::ddp {

void BucketEnds::begun(size_t bucket) {
  MutexLock lock(mutex_);
  if (bucket >= ends_.size()) ends_.resize(bucket + 1);
  ++ends_[bucket].open;
}

void BucketEnds::ended(size_t bucket, TimePoint now) {
  MutexLock lock(mutex_);
  End& end = ends_[bucket];
  end.last = std::max(end.last, now);
  --end.open;
}

TimePoint BucketEnds::lastEnd(size_t bucket, TimePoint now) {
  MutexLock lock(mutex_);
  if (bucket >= ends_.size()) return {};
  return ends_[bucket].open > 0 ? now : ends_[bucket].last;
}

}  // namespace treadle::ddp

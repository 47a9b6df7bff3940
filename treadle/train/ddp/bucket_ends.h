#pragma once
// When the operations of each bucket of one pass have ended. The thread that ends an operation reports it, which may be
// later than the pass: such operations share ownership. Any thread.

#include <cstddef>
#include <vector>

#include "treadle/core/base/clock.h"
#include "treadle/core/base/mutex.h"

namespace treadle::ddp {

class BucketEnds {
 public:
  // An operation of the bucket has begun.
  void begun(size_t bucket);
  // One of these has ended.
  void ended(size_t bucket, TimePoint now);
  // When the last operation of the bucket ended; TimePoint() if it has none. All have ended by `now`, which stands for
  // ends that are not reported yet: a future is ready before its continuations run.
  TimePoint lastEnd(size_t bucket, TimePoint now);

 private:
  struct End {
    TimePoint last{};
    int open = 0;  // operations
  };

  Mutex mutex_;
  std::vector<End> ends_ TREADLE_GUARDED_BY(mutex_);
};

}  // namespace treadle::ddp

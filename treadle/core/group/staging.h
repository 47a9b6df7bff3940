#pragma once
// The memory of an operation whose data lies elsewhere. Held by the operation, in whose turn all of it is called, and
// destroyed when the operation has ended.

#include "treadle/core/base/buffer.h"
#include "treadle/core/base/status.h"

namespace treadle::group {

struct Staged {
  MutableBytes source, result;  // the same, or apart
};

class Staging {
 public:
  virtual ~Staging() = default;

  // The memory, with the data in it. Called once, before the operation reads anything. A failure fails the operation on
  // all members.
  virtual Result<Staged> fill() = 0;
  // The operation has ended well: the result goes from the memory to where it belongs.
  virtual void putBack() = 0;
};

}  // namespace treadle::group

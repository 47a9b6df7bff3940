#pragma once
// A frame that is to be written, with the memory of its piece. Plain values.

#include "treadle/core/summation/frame.h"

namespace treadle::summation {

struct Outgoing {
  Frame frame;
  Bytes piece;      // empty where the frame has none
  size_t part = 0;  // of the declaration
};

}  // namespace treadle::summation

#pragma once
// A call of an operation, and which algorithm does it. Pure functions: all members choose the same one.

#include "treadle/core/group/agreement.h"
#include "treadle/core/group/messages.h"
#include "treadle/core/group/plan.h"

namespace treadle::group {

struct Call {
  Description description;
  Bytes input;
  MutableBytes output;
  std::vector<uint64_t> counts = {}, incoming = {};  // as in Shape
};

// Up to this many members an operation begins with a message from each to each. Above, only an all-to-all does, whose
// data goes so as well.
inline constexpr int kMostAllToAll = 16;

Agreement::Kind agreementOf(const Description& description, int size);

// The plan of the member `self` of `size`, at least 2.
Plan planOf(const Call& call, int size, int self);

}  // namespace treadle::group

#include "treadle/core/group/exchange.h"

#include <cstring>

namespace treadle::group {

Exchange::Exchange(Setup setup) : Operation(std::move(setup)), given_(static_cast<size_t>(link().size())) {}

bool Exchange::givesData(int member) const {
  switch (description().operation) {
    case OperationKind::kAllReduce: return true;
    case OperationKind::kBroadcast: return member == static_cast<int>(description().root);
    case OperationKind::kBarrier: break;
  }
  return false;
}

void Exchange::onBegin() {
  bool gives = givesData(link().self());
  tellOthers(gives ? Buffer::borrow(memory().data(), memory().size()) : Buffer());
  finishIfComplete();
}

void Exchange::onStarted(int member, Buffer data) {
  if (data.sizeBytes != (givesData(member) ? memory().size() : 0))
    return violated(member, "data of another size than it said");
  given_[static_cast<size_t>(member)] = std::move(data);
  finishIfComplete();
}

void Exchange::finishIfComplete() {
  if (ended() || !begun() || !allStarted()) return;
  if (description().operation == OperationKind::kAllReduce) {
    reduceAll();
  } else if (int root = static_cast<int>(description().root); !memory().empty() && root != link().self()) {
    std::memcpy(memory().data(), given_[static_cast<size_t>(root)].data, memory().size());
  }
  finish({});
}

// In the order of ranks, into the memory of the first: rounding depends on the order.
void Exchange::reduceAll() {
  if (memory().empty()) return;
  Buffer& own = given_[static_cast<size_t>(link().self())];
  own = Buffer::borrow(memory().data(), memory().size());
  const Description& what = description();
  if (reducesAtOnce(what.dataType, what.reduceOp)) {
    std::vector<const std::byte*> members;
    for (const Buffer& values : given_) members.push_back(values.data);
    return reduceAtOnce(what.dataType, what.reduceOp, members, what.count, memory().data());
  }
  std::byte* sum = given_.front().data;
  for (size_t rank = 1; rank < given_.size(); ++rank)
    reduceInto(what.dataType, what.reduceOp, sum, given_[rank].data, what.count);
  if (what.reduceOp == ReduceOp::kAverage) divide(what.dataType, sum, what.count, link().size());
  if (sum != memory().data()) std::memcpy(memory().data(), sum, memory().size());
}

}  // namespace treadle::group

#pragma once
// A small value of each member of a group, for members that must decide alike. A function without state; used as the
// group is.

#include <span>
#include <type_traits>
#include <vector>

#include "treadle/core/group/group.h"

namespace treadle::ddp {

// By rank. It is the group's next operation, and throws what that throws. A member that cannot go on should take part
// with a value that says so, or the others wait for it.
template <class T>
  requires std::is_trivially_copyable_v<T>
std::vector<T> ofAllRanks(const ProcessGroup& group, const T& own) {
  std::vector<T> all(static_cast<size_t>(group.size()));
  allGather(group, std::as_bytes(std::span(&own, 1)), std::as_writable_bytes(std::span(all))).wait();
  return all;
}

}  // namespace treadle::ddp

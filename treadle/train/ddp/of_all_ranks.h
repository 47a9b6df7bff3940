#pragma once
// A small value of each member of a group, for members that must decide alike. A function without state; used as the
// group is.

#include <ATen/ops/empty.h>

#include <cstring>
#include <type_traits>
#include <vector>

#include "treadle/tensor/collective/collectives.h"
#include "treadle/train/ddp/any_algorithm.h"

namespace treadle::ddp {

// By rank. It is the group's next operation, and throws what that throws. A member that cannot go on should take part
// with a value that says so, or the others wait for it. It goes by the fastest algorithm, whatever the group forces.
template <class T>
  requires std::is_trivially_copyable_v<T>
std::vector<T> ofAllRanks(const ProcessGroup& group, const T& own) {
  // Tensors, which the operation keeps alive: a thread that must not wait leaves at once.
  constexpr auto kBytes = static_cast<int64_t>(sizeof(T));
  const at::Tensor mine = at::empty({kBytes}, at::kByte);
  at::Tensor gathered = at::empty({group.size(), kBytes}, at::kByte);
  std::memcpy(mine.data_ptr(), &own, sizeof(T));
  allGather(byAnyAlgorithm(group), mine, gathered).wait();
  std::vector<T> all(static_cast<size_t>(group.size()));
  std::memcpy(all.data(), gathered.const_data_ptr(), gathered.nbytes());
  return all;
}

}  // namespace treadle::ddp

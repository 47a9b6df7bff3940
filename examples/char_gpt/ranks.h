#pragma once
// The processes that share each batch of a training: the ranks of a group, or one process that has no group.

#include <ATen/core/Tensor.h>
#include <treadle/group.h>

namespace char_gpt {

struct Ranks {
  treadle::ProcessGroup group;  // empty: one process

  int rank() const { return group.valid() ? group.rank() : 0; }
  int size() const { return group.valid() ? group.size() : 1; }
  // Each value becomes its sum over all ranks. An operation of the group.
  void sum(at::Tensor& values) const {
    if (group.valid()) treadle::allReduce(group, values).wait();
  }
};

}  // namespace char_gpt

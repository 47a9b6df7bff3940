#pragma once
// Which sends the nodes of the local graph depend on. Found by walking the graph once: what is known of a node is
// remembered, so that a later send looks at new nodes alone, and shared by nodes that depend on the same.
//
// A node is remembered by its address, sequence number and thread, which no two nodes have in common, not even one
// after the other at the same address. It is not kept alive: neither a reference nor a weak one, as libtorch's nodes
// free what they saved only with the last of either. So what is remembered of nodes that are gone stays, until there
// is more of it than of living ones.
//
// Budget: a look-up for each edge behind new nodes, and an entry of a map (80 bytes) for each new node that has edges.
// One thread at a time.

#include <cstdint>
#include <unordered_map>

#include "treadle/core/base/status.h"
#include "treadle/tensor/autograd/lineage.h"
#include "treadle/tensor/autograd/torch_compat.h"

namespace treadle::autograd {

class Ancestry {
 public:
  explicit Ancestry(int64_t contextId) : contextId_(contextId) {}

  // Adds to `lineage` what all that `edge` leads to depends on. Shares a set where it can. FailedPrecondition when that
  // is a message of another context: gradients cannot go over the border.
  Status unite(LineagePtr& lineage, const Edge& edge);

  // Of a graph that is gone.
  void clear() { known_.clear(); }

  size_t known() const { return known_.size(); }

 private:
  struct Known {
    uint64_t sequence = 0, thread = 0;
    LineagePtr lineage;
  };

  Status find(const Node& node);
  Result<bool> ask(const Node& node, LineagePtr& lineage) const;

  const int64_t contextId_;
  std::unordered_map<const Node*, Known> known_;
  size_t most_ = size_t{1} << 16;
};

}  // namespace treadle::autograd

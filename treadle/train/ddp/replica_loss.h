#pragma once
// What the function of a replica returns, and whether a pass can use it.

#include <ATen/core/Tensor.h>

#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "treadle/core/base/status.h"
#include "treadle/train/ddp/divisor.h"
#include "treadle/train/ddp/loss_leaves.h"
#include "treadle/train/ddp/module_clone.h"

namespace treadle {

// What the function of a replica returns: its loss, of one element. Undefined: it has no batch.
struct ReplicaLoss {
  ReplicaLoss() = default;
  ReplicaLoss(at::Tensor loss) : loss(std::move(loss)) {}  // NOLINT: implicit, so that a function returns its loss
  ReplicaLoss(at::Tensor loss, double weight) : loss(std::move(loss)), weight(weight) {}

  at::Tensor loss;
  std::optional<double> weight;  // with Divisor::kWeights: its number of samples, say; the loss is a sum then
};

}  // namespace treadle

namespace treadle::ddp {

// FailedPrecondition: it requires no gradient, or has a weight where the divisor wants none, or the other way round.
// InvalidArgument: the weight is negative, infinite or NaN.
Status checkLoss(const ReplicaLoss& result, Divisor divisor);

// To which replica each parameter belongs. Immutable; any thread.
class LeafOwners {
 public:
  // `parameters` outlives it.
  explicit LeafOwners(const std::vector<ClonedTensor>& parameters);

  // By replica, for the leaves of its loss. FailedPrecondition: one is a parameter of the module or of another replica,
  // or no parameter and of the loss of another replica too, or has a hook. Other leaves, such as an input, are fine.
  std::vector<Status> check(const std::vector<std::vector<LossLeaf>>& leavesByReplica) const;

 private:
  struct Owner {
    std::optional<size_t> replica;  // nothing: the module
    const ClonedTensor* parameter;
  };

  std::unordered_map<const c10::TensorImpl*, Owner> owners_;
};

}  // namespace treadle::ddp

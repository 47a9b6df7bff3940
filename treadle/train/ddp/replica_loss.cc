#include "treadle/train/ddp/replica_loss.h"

#include <cmath>
#include <string>

namespace treadle::ddp {

Status checkLoss(const ReplicaLoss& result, Divisor divisor) {
  if (!result.loss.defined()) return {};
  if (!result.loss.requires_grad())
    return failedPrecondition(
        "its loss requires no gradient: compute it from the replica's parameters, with gradients enabled");
  if (divisor != Divisor::kWeights && result.weight)
    return failedPrecondition("its loss has a weight, which has no meaning unless the divisor is Divisor::kWeights");
  if (divisor == Divisor::kWeights && !result.weight)
    return failedPrecondition(
        "the divisor is Divisor::kWeights, and its loss has no weight: return ReplicaLoss(loss, weight)");
  if (result.weight && (!(*result.weight >= 0) || !std::isfinite(*result.weight)))
    return invalidArgument("its loss has the weight " + std::to_string(*result.weight) +
                           ": weights are finite and not negative, as a number of samples is");
  return {};
}

LeafOwners::LeafOwners(const std::vector<ClonedTensor>& parameters) {
  for (const ClonedTensor& parameter : parameters) {
    owners_[parameter.tensor.unsafeGetTensorImpl()] = {std::nullopt, &parameter};
    for (size_t replica = 0; replica < parameter.ofClones.size(); ++replica)
      for (const at::Tensor& own : parameter.ofClones[replica])
        owners_[own.unsafeGetTensorImpl()] = {replica, &parameter};
  }
}

std::vector<Status> LeafOwners::check(const std::vector<std::vector<LossLeaf>>& leavesByReplica) const {
  const std::string dependsOn = "the loss depends on ";
  std::vector<Status> statuses(leavesByReplica.size());
  std::unordered_map<const c10::TensorImpl*, size_t> others;  // by the first replica whose loss depends on it
  for (size_t index = 0; index < leavesByReplica.size(); ++index)
    for (const LossLeaf& leaf : leavesByReplica[index]) {
      const c10::TensorImpl* const tensor = leaf.tensor.unsafeGetTensorImpl();
      if (const auto owner = owners_.find(tensor); owner != owners_.end()) {
        const auto& [replica, parameter] = owner->second;
        if (replica == index) continue;
        statuses[index] = failedPrecondition(dependsOn + "parameter " + parameter->names + " of " +
                                             (replica ? "replica " + std::to_string(*replica) : "the module itself") +
                                             ": a ReplicaSet computes with the replica that its function is given");
      } else if (const auto [first, isNew] = others.try_emplace(tensor, index); !isNew || leaf.isHooked) {
        statuses[index] =
            failedPrecondition(dependsOn + "a trained tensor of " + toString(leaf.tensor.scalar_type()) + " " +
                               c10::str(leaf.tensor.sizes()) + " that is no parameter of the replica, and " +
                               (isNew ? "has a hook of a DistributedDataParallel"
                                      : "the loss of replica " + std::to_string(first->second) + " does too") +
                               ": make it a parameter of the module, or detach it");
      }
    }
  return statuses;
}

}  // namespace treadle::ddp

#include "treadle/train/ddp/clip_grad_norm.h"

#include <exception>

#include "treadle/tensor/optim/gradient_power.h"
#include "treadle/train/ddp/of_all_ranks.h"

namespace treadle::ddp {
namespace {

// The message of each rank. A rank that failed takes part too, or the others would wait for it.
struct Contribution {
  uint32_t failed = 0, errorIfNonFinite = 0;
  double maxNorm = 0, normType = 0, power = 0;
};

// The power of the gradients for which this rank answers.
double ownPower(DistributedOptimizer& optimizer, const AutogradContext& context,
                const std::vector<at::Tensor>& replicated, const ProcessGroup& group, double maxNorm,
                ClipOptions options) {
  std::vector<double> powers = optimizer.gradientPowers(context, options.normType);
  if (group.rank() != 0)
    for (size_t number : optimizer.numbersOf(replicated)) options.notCounted.push_back(number);
  optim::checkClip(maxNorm, options, powers.size());
  return optim::countedPower(std::move(powers), options);
}

void checkAllAgree(const std::vector<Contribution>& all) {
  for (size_t rank = 0; rank < all.size(); ++rank)
    if (all[rank].failed != 0)
      raise(failedPrecondition("rank " + std::to_string(rank) +
                               " of the group has failed to clip its gradients; none were changed"));
  for (size_t rank = 1; rank < all.size(); ++rank)
    if (all[rank].maxNorm != all[0].maxNorm || all[rank].normType != all[0].normType)
      raise(invalidArgument("ranks must clip alike: rank 0 clips to " + std::to_string(all[0].maxNorm) + " by norm " +
                            std::to_string(all[0].normType) + ", rank " + std::to_string(rank) + " to " +
                            std::to_string(all[rank].maxNorm) + " by norm " + std::to_string(all[rank].normType)));
  // Otherwise some ranks would throw and others go on to their step.
  for (size_t rank = 1; rank < all.size(); ++rank)
    if (all[rank].errorIfNonFinite != all[0].errorIfNonFinite)
      raise(invalidArgument("ranks must clip alike: ClipOptions::errorIfNonFinite differs between rank 0 and rank " +
                            std::to_string(rank)));
}

}  // namespace

double clipGradNorm(DistributedOptimizer& optimizer, const AutogradContext& context,
                    const std::vector<at::Tensor>& replicated, const ProcessGroup& group, double maxNorm,
                    const ClipOptions& options) {
  Contribution own{
      .errorIfNonFinite = options.errorIfNonFinite ? 1U : 0U, .maxNorm = maxNorm, .normType = options.normType};
  std::exception_ptr failure;
  try {
    own.power = ownPower(optimizer, context, replicated, group, maxNorm, options);
  } catch (...) {
    failure = std::current_exception();
    own.failed = 1;
  }
  const std::vector<Contribution> all = ofAllRanks(group, own);
  if (failure) std::rethrow_exception(failure);
  checkAllAgree(all);
  std::vector<double> powers;
  for (const Contribution& one : all) powers.push_back(one.power);
  const double norm = optim::normOfPower(optim::combinedPower(powers, options.normType), options.normType);
  const double factor = optim::clipFactor(norm, maxNorm, options);
  if (factor < 1) optimizer.scaleGradients(context, factor);
  return norm;
}

}  // namespace treadle::ddp

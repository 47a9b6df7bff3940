#include "treadle/tensor/optim/clip_grad_norm.h"

#include <torch/csrc/autograd/grad_mode.h>

#include <cmath>
#include <set>

#include "treadle/core/base/error.h"
#include "treadle/tensor/optim/gradient_power.h"

namespace treadle {
namespace optim {

void checkClip(double maxNorm, const ClipOptions& options, size_t parameters) {
  checkNormType(options.normType);
  if (!(maxNorm > 0))
    raise(invalidArgument("gradients are clipped to a positive norm, not to " + std::to_string(maxNorm)));
  for (size_t number : options.notCounted)
    if (number >= parameters)
      raise(invalidArgument("ClipOptions::notCounted names parameter " + std::to_string(number) + "; there are " +
                            std::to_string(parameters) + ", numbered from 0"));
}

double countedPower(std::vector<double> powers, const ClipOptions& options) {
  for (size_t number : options.notCounted) powers[number] = 0;
  return combinedPower(powers, options.normType);
}

double clipFactor(double norm, double maxNorm, const ClipOptions& options) {
  if (!std::isfinite(norm)) {
    if (options.errorIfNonFinite)
      raise(failedPrecondition("the norm of the gradients is " + std::to_string(norm) +
                               ", so they cannot be clipped; they were not changed"));
    return 1;
  }
  // torch's formula: its 1e-6 keeps the factor finite.
  const double factor = maxNorm / (norm + 1e-6);
  return factor < 1 ? factor : 1;
}

}  // namespace optim

double clipGradNorm(const std::vector<at::Tensor>& parameters, double maxNorm, const ClipOptions& options) {
  optim::checkClip(maxNorm, options, parameters.size());
  const torch::autograd::AutoGradMode noGrad(false);
  std::vector<double> powers(parameters.size());
  std::vector<at::Tensor> gradients;
  std::set<const c10::TensorImpl*> known;
  for (size_t number = 0; number < parameters.size(); ++number) {
    const at::Tensor gradient = parameters[number].defined() ? parameters[number].grad() : at::Tensor();
    if (!gradient.defined() || !known.insert(gradient.unsafeGetTensorImpl()).second) continue;
    powers[number] = optim::gradientPower(gradient, options.normType);
    gradients.push_back(gradient);
  }
  const double norm = optim::normOfPower(optim::countedPower(std::move(powers), options), options.normType);
  const double factor = optim::clipFactor(norm, maxNorm, options);
  if (factor < 1)
    for (at::Tensor& gradient : gradients) gradient.mul_(factor);
  return norm;
}

double clipGradNorm(const torch::nn::Module& module, double maxNorm, const ClipOptions& options) {
  return clipGradNorm(module.parameters(), maxNorm, options);
}

}  // namespace treadle

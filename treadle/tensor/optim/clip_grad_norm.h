#pragma once
// Clips gradients by their global norm: all gradients are seen as one vector, and if its norm is above a limit, all are
// multiplied by the same factor (R. Pascanu et al., "On the difficulty of training recurrent neural networks", 2013,
// section 3.2). Here for the gradients in `.grad`; DistributedOptimizer::clipGradNorm is for those in a context.
//
// After an averaged pass of DistributedDataParallel all ranks have the same gradients, so the local norm is the global
// one, and each rank calls this for itself; nothing is sent. The norm is computed in float64 in a fixed order: equal
// gradients give all ranks a factor with equal bits. Functions without state, for gradients that nobody else uses
// meanwhile.

#include <torch/nn/module.h>

#include <vector>

namespace treadle {

struct ClipOptions {
  double normType = 2;  // 1, 2 or infinity
  // If the norm is infinite or NaN: true throws StateError, false changes nothing and returns the norm. Either way the
  // gradients stay as they are. torch would multiply them by 0 or NaN.
  bool errorIfNonFinite = false;
  // Numbers of parameters in the order in which they were given. They are scaled, but not counted in the norm: each is
  // a replica of one that is counted.
  std::vector<size_t> notCounted = {};
};

// Multiplies all gradients by maxNorm / (norm + 1e-6) if that is below 1, in place, as torch's clip_grad_norm_ does;
// returns the norm before, also where nothing was clipped. An infinite `maxNorm` only measures. Parameters without a
// gradient are skipped, and one that is given twice counts once. Gradients are dense or sparse (COO) tensors of
// float16, bfloat16, float32 or float64 in CPU memory. ArgumentError, before anything is changed: `maxNorm` is not
// positive, another norm, a gradient of another kind, a number beyond the parameters.
double clipGradNorm(const std::vector<at::Tensor>& parameters, double maxNorm, const ClipOptions& options = {});
// The parameters of the module and of those in it. A RemoteSubmodule has none here.
double clipGradNorm(const torch::nn::Module& module, double maxNorm, const ClipOptions& options = {});

namespace optim {

// The steps of clipping, for callers that collect `powers` of gradients (gradient_power.h) from elsewhere.

// ArgumentError: as above.
void checkClip(double maxNorm, const ClipOptions& options, size_t parameters);
// The power of the parameters that are counted, `powers` by number.
double countedPower(std::vector<double> powers, const ClipOptions& options);
// The factor for all gradients; 1 when they stay as they are. StateError: ClipOptions::errorIfNonFinite.
double clipFactor(double norm, double maxNorm, const ClipOptions& options);

}  // namespace optim

}  // namespace treadle

#include "treadle/tensor/optim/unscale.h"

#include <cmath>
#include <limits>

#include "treadle/core/base/error.h"
#include "treadle/tensor/optim/gradient_power.h"

namespace treadle::optim {

void checkUnscalable(const at::Tensor& gradient) {
  if (!gradient.defined()) return;
  checkHasPower(gradient);
  if (gradient.scalar_type() == at::kHalf)
    raise(
        invalidArgument("gradients of float16 cannot be unscaled: they have overflowed and rounded already; keep "
                        "parameters in float32, and let Autocast compute in float16"));
}

bool isFinite(const at::Tensor& gradient) {
  return std::isfinite(gradientPower(gradient, std::numeric_limits<double>::infinity()));
}

}  // namespace treadle::optim

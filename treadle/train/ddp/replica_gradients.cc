#include "treadle/train/ddp/replica_gradients.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/add.h>
#include <torch/csrc/autograd/autograd.h>

#include <utility>

namespace treadle::ddp {
namespace {

// The first sum is a new tensor: gradients of two parameters may share memory. A dense and a sparse one make a dense
// one.
at::Tensor plus(const at::Tensor& sum, const at::Tensor& gradient, bool isNew) {
  if (sum.is_sparse() && !gradient.is_sparse()) return at::add(gradient, sum);
  return isNew ? at::Tensor(sum).add_(gradient) : at::add(sum, gradient);
}

// Of one parameter; undefined: no replica has a gradient.
at::Tensor takeSum(std::vector<std::vector<at::Tensor>>& ofClones) {
  at::Tensor sum;
  bool isNew = false;
  for (std::vector<at::Tensor>& ofClone : ofClones)
    for (at::Tensor& own : ofClone) {
      const at::Tensor gradient = std::exchange(own.mutable_grad(), at::Tensor());
      if (!gradient.defined()) continue;
      const bool isFirst = !sum.defined();
      sum = isFirst ? gradient : plus(sum, gradient, isNew);
      isNew = !isFirst;
    }
  return sum;
}

}  // namespace

void addUp(std::vector<ClonedTensor>& parameters, double divisor, ReplicaSums& sums) {
  const at::NoGradGuard noGrad;
  for (ClonedTensor& parameter : parameters) {
    const at::Tensor sum = takeSum(parameter.ofClones);
    if (!sum.defined()) continue;
    sums.parameters.push_back(parameter.tensor);
    sums.gradients.push_back(divisor == 1 ? sum : sum.div(divisor));
  }
}

void dropGradients(std::vector<ClonedTensor>& parameters) {
  for (ClonedTensor& parameter : parameters)
    for (std::vector<at::Tensor>& ofClone : parameter.ofClones)
      for (at::Tensor& own : ofClone) own.mutable_grad().reset();
}

void accumulate(const ReplicaSums& sums) {
  if (!sums.parameters.empty()) torch::autograd::backward(sums.parameters, sums.gradients);
}

}  // namespace treadle::ddp

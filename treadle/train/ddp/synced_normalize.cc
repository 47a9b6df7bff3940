#include "treadle/train/ddp/synced_normalize.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/addcmul.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/tensor.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

#include <cmath>
#include <optional>

#include "treadle/core/base/error.h"
#include "treadle/tensor/collective/collectives.h"

namespace treadle::ddp {
namespace {

at::ScalarType computeType(const at::Tensor& input) {
  return input.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

// [C] -> [1, C, 1, ...]
at::Tensor alongChannels(const at::Tensor& perChannel, const at::Tensor& input) {
  std::vector<int64_t> shape(static_cast<size_t>(input.dim()), 1);
  shape[1] = perChannel.numel();
  return perChannel.to(computeType(input)).view(shape);
}

std::vector<int64_t> allButChannels(const at::Tensor& input) {
  std::vector<int64_t> dims = {0};
  for (int64_t dim = 2; dim < input.dim(); ++dim) dims.push_back(dim);
  return dims;
}

template <class F>
at::Tensor perChannel(size_t channels, F value) {
  at::Tensor values = at::empty({static_cast<int64_t>(channels)}, at::kDouble);
  double* data = values.mutable_data_ptr<double>();
  for (size_t c = 0; c < channels; ++c) data[c] = value(c);
  return values;
}

// Backward needs these of the whole batch.
struct WholeBatch final : torch::CustomClassHolder {
  WholeBatch(const BatchMoments& moments, double eps, CountedGroup group, uint64_t use)
      : count(moments.count),
        mean(perChannel(moments.mean.size(), [&](size_t c) { return moments.mean[c]; })),
        scale(perChannel(moments.mean.size(), [&](size_t c) { return 1 / std::sqrt(moments.variance(c) + eps); })),
        group(std::move(group)),
        use(static_cast<double>(use % 65536)) {}

  at::Tensor scaleTimes(const at::Tensor& weight) const { return weight.defined() ? scale * weight : scale; }

  const double count;
  const at::Tensor mean, scale;  // [C], float64; scale: 1 / sqrt(var + eps)
  const CountedGroup group;
  const double use;  // its square, times the number of ranks, is exact
};

const char* const kWholeBatch = "wholeBatch";

// The letters are those of the equations: S1 = sum of dy, S2 = sum of dy (x - mean), s the scale, w the weight.
struct SyncedNormalize : torch::autograd::Function<SyncedNormalize> {
  // `token` gives the node an input that requires a gradient.
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& input,
                            const at::Tensor& /*token*/, const std::optional<at::Tensor>& weightOrNone,
                            const std::optional<at::Tensor>& biasOrNone, const c10::intrusive_ptr<WholeBatch>& batch) {
    const at::Tensor weight = weightOrNone.value_or(at::Tensor()), bias = biasOrNone.value_or(at::Tensor());
    context->save_for_backward({input, weight});
    context->saved_data[kWholeBatch] = c10::IValue::make_capsule(batch);
    at::Tensor y = input.to(computeType(input)) - alongChannels(batch->mean, input);
    const at::Tensor scale = alongChannels(batch->scaleTimes(weight), input);
    y = bias.defined() ? at::addcmul(alongChannels(bias, input), y, scale) : y.mul_(scale);
    return y.to(input.scalar_type());
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    // With its history dy (and so all sums) would have a derivative that is not the whole one.
    if (at::GradMode::is_enabled())
      raise(invalidArgument(
          "SyncBatchNorm has no second derivative: call backward or torch::autograd::grad without create_graph"));
    const torch::autograd::variable_list saved = context->get_saved_variables();
    const at::Tensor &input = saved[0], &weight = saved[1];
    const auto batch = c10::static_intrusive_pointer_cast<WholeBatch>(context->saved_data.at(kWholeBatch).toCapsule());
    const at::Tensor dy = gradients[0].to(computeType(input));
    const at::Tensor deviation = input.to(computeType(input)) - alongChannels(batch->mean, input);
    const at::Tensor own = ownSums(dy, deviation);
    const at::Tensor all = sumOverRanks(own, *batch);
    torch::autograd::variable_list result(5);
    if (context->needs_input_grad(0)) result[0] = inputGradient(dy, deviation, weight, all, *batch).to(input.dtype());
    if (weight.defined()) {
      result[2] = (own[1] * batch->scale).to(weight.dtype());
      result[3] = own[0].to(weight.dtype());
    }
    return result;
  }

  // [S1, S2] of this rank: [2, C], float64.
  static at::Tensor ownSums(const at::Tensor& dy, const at::Tensor& deviation) {
    const std::vector<int64_t> dims = allButChannels(dy);
    return at::stack({at::sum(dy, dims), at::sum(dy * deviation, dims)}).to(at::kDouble);
  }

  // Passes of other ranks that meet this one in the node of another forward call give sums of another batch: so the
  // number of the call travels along. sum (use_r - use)^2 = 0 only if all are equal.
  static at::Tensor sumOverRanks(const at::Tensor& own, const WholeBatch& batch) {
    const double use = batch.use;
    at::Tensor all = at::cat({own.flatten(), at::tensor({use, use * use}, at::kDouble)});
    Future<void> done = allReduce(batch.group.group, all);
    ++*batch.group.called;
    done.wait();
    const double *uses = all.const_data_ptr<double>() + own.numel(), ranks = batch.group.group.size();
    if (uses[1] - 2 * use * uses[0] + ranks * use * use != 0)
      raise(invalidArgument(
          "backward passes of the ranks met in outputs of different forward calls of one SyncBatchNorm: go through its "
          "outputs in the same order on all ranks"));
    return all.slice(0, 0, own.numel()).view(own.sizes());
  }

  // w s (dy - S1/N - (x - mean) s^2 S2/N)
  static at::Tensor inputGradient(const at::Tensor& dy, const at::Tensor& deviation, const at::Tensor& weight,
                                  const at::Tensor& sums, const WholeBatch& batch) {
    const at::Tensor constant = sums[0] / batch.count;
    const at::Tensor slope = batch.scale * batch.scale * sums[1] / batch.count;
    at::Tensor dx = dy - alongChannels(constant, dy);
    return dx.addcmul_(deviation, alongChannels(slope, dy), -1).mul_(alongChannels(batch.scaleTimes(weight), dy));
  }
};

}  // namespace

at::Tensor normalizeSynced(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias,
                           BatchMoments moments, double eps, CountedGroup group, uint64_t use) {
  const at::Tensor token = at::empty({0}).requires_grad_();
  // An absent input is none to libtorch, not an undefined tensor.
  auto orNone = [](const at::Tensor& tensor) { return tensor.defined() ? std::optional(tensor) : std::nullopt; };
  return SyncedNormalize::apply(input, token, orNone(weight), orNone(bias),
                                c10::make_intrusive<WholeBatch>(moments, eps, std::move(group), use));
}

}  // namespace treadle::ddp

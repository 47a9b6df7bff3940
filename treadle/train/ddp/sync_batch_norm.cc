#include "treadle/train/ddp/sync_batch_norm.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/batch_norm.h>
#include <ATen/ops/empty.h>

#include <ostream>
#include <sstream>

#include "treadle/core/base/error.h"
#include "treadle/tensor/collective/collectives.h"
#include "treadle/train/ddp/synced_normalize.h"

namespace treadle {
namespace {

const torch::nn::BatchNormOptions& checked(const torch::nn::BatchNormOptions& options) {
  if (options.num_features() < 1)
    raise(invalidArgument("SyncBatchNorm normalizes at least one channel, not " +
                          std::to_string(options.num_features())));
  return options;
}

ProcessGroup groupOfItsOwn(group::Job& job, const ProcessGroup& group) {
  GroupOptions options = group.options();
  options.name += ".syncbn";
  options.algorithm = group::Algorithm::kAutomatic;
  return ProcessGroup::make(job, group.members(), std::move(options));
}

bool is16Bit(at::ScalarType dtype) { return dtype == at::kHalf || dtype == at::kBFloat16; }

Status checkType(const at::Tensor& input) {
  if (!input.defined()) return invalidArgument("SyncBatchNorm was given an undefined tensor");
  const at::ScalarType dtype = input.scalar_type();
  if (!input.device().is_cpu() || input.layout() != at::kStrided ||
      !(is16Bit(dtype) || dtype == at::kFloat || dtype == at::kDouble))
    return invalidArgument("SyncBatchNorm takes dense CPU tensors of float16, bfloat16, float32 or float64, not " +
                           input.toString());
  return {};
}

Status checkShape(const at::Tensor& input, int64_t channels) {
  if (input.dim() >= 2 && input.dim() <= 5 && input.size(1) == channels) return {};
  std::ostringstream message;
  message << "SyncBatchNorm of " << channels << " channels takes an input of 2 to 5 dimensions [N, " << channels
          << ", ...], not " << input.sizes();
  return invalidArgument(message.str());
}

Status checkSameType(const at::Tensor& input, const at::Tensor& own, const char* name) {
  if (!own.defined() || own.scalar_type() == input.scalar_type() ||
      (is16Bit(input.scalar_type()) && own.scalar_type() == at::kFloat))
    return {};
  return invalidArgument(std::string("SyncBatchNorm was given an input of ") + c10::toString(input.scalar_type()) +
                         ", and its " + name + " has " + c10::toString(own.scalar_type()) +
                         ": convert the module with to(dtype)");
}

// A plain loop: ranks whose libtorch picks other kernels must get the same bits.
void blend(at::Tensor& running, double momentum, const std::vector<double>& latest) {
  at::Tensor values = running.to(at::kDouble, /*non_blocking=*/false, /*copy=*/true).contiguous();
  double* data = values.mutable_data_ptr<double>();
  for (size_t c = 0; c < latest.size(); ++c) data[c] = (1 - momentum) * data[c] + momentum * latest[c];
  running.copy_(values);
}

}  // namespace

SyncBatchNormImpl::SyncBatchNormImpl(const torch::nn::BatchNormOptions& options, group::Job& job,
                                     const ProcessGroup& group)
    : NormImplBase(checked(options)), group_{groupOfItsOwn(job, group)} {}

void SyncBatchNormImpl::_check_input_dim(const at::Tensor& input) {
  throwIfError(checkShape(input, options.num_features()));
}

at::Tensor SyncBatchNormImpl::forward(const at::Tensor& input) {
  throwIfError(checkType(input));
  _check_input_dim(input);
  throwIfError(checkSameType(input, weight, "weight"));
  throwIfError(checkSameType(input, bias, "bias"));
  throwIfError(checkSameType(input, running_mean, "running_mean"));
  throwIfError(checkSameType(input, running_var, "running_var"));
  if (!is_training()) return forwardAlone(input);
  const uint64_t use = *group_.called;
  ddp::BatchMoments moments = momentsOfAllRanks(input);
  if (moments.count == 1)
    raise(invalidArgument("all ranks together gave SyncBatchNorm one value for each channel, which has no variance"));
  if (running_mean.defined() && moments.count > 0) updateRunning(moments);
  return ddp::normalizeSynced(input, weight, bias, std::move(moments), options.eps(), group_, use);
}

at::Tensor SyncBatchNormImpl::forwardAlone(const at::Tensor& input) const {
  return at::batch_norm(input, weight, bias, running_mean, running_var, /*training=*/!running_mean.defined(),
                        /*momentum=*/0, options.eps(), /*cudnn_enabled=*/false);
}

ddp::BatchMoments SyncBatchNormImpl::momentsOfAllRanks(const at::Tensor& input) const {
  const at::NoGradGuard noGrad;
  const at::Tensor own = ddp::packed(ddp::momentsOf(is16Bit(input.scalar_type()) ? input.to(at::kFloat) : input));
  at::Tensor all = at::empty({group_.group.size(), own.numel()}, at::kDouble);
  Future<void> done = allGather(group_.group, own, all);
  ++*group_.called;
  done.wait();
  return ddp::merged(all);
}

void SyncBatchNormImpl::updateRunning(const ddp::BatchMoments& moments) {
  const at::NoGradGuard noGrad;
  num_batches_tracked.add_(1);
  const double momentum = options.momentum().value_or(1 / num_batches_tracked.item<double>());
  std::vector<double> variance(moments.mean.size());
  for (size_t c = 0; c < variance.size(); ++c) variance[c] = moments.unbiasedVariance(c);
  blend(running_mean, momentum, moments.mean);
  blend(running_var, momentum, variance);
}

void SyncBatchNormImpl::pretty_print(std::ostream& stream) const {
  stream << std::boolalpha << "treadle::SyncBatchNorm(" << options.num_features() << ", eps=" << options.eps()
         << ", momentum=";
  options.momentum() ? stream << *options.momentum() : stream << "None";
  stream << ", affine=" << options.affine() << ", track_running_stats=" << options.track_running_stats() << ")";
}

}  // namespace treadle

namespace treadle::ddp {
namespace {

void refuseIfSynced(const torch::nn::Module& module, const std::string& name, const std::string& function) {
  if (dynamic_cast<const SyncBatchNormImpl*>(&module) == nullptr) return;
  raise(invalidArgument(function + " cannot be used with a SyncBatchNorm" + (name.empty() ? "" : " ('" + name + "')") +
                        ": it waits for all ranks in forward, and a rank without a batch calls none; use BatchNorm" +
                        " where ranks may have other numbers of batches"));
}

}  // namespace

void refuseSyncBatchNorm(const torch::nn::Module& module, const std::string& function) {
  refuseIfSynced(module, "", function);
  for (const auto& entry : module.named_modules("", /*include_self=*/false))
    refuseIfSynced(*entry.value(), entry.key(), function);
}

}  // namespace treadle::ddp

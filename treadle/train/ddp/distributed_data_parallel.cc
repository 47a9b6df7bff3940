#include "treadle/train/ddp/distributed_data_parallel.h"

#include <ATen/ops/full.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

#include "treadle/core/summation/job.h"
#include "treadle/core/summation/service.h"
#include "treadle/core/summation/services.h"
#include "treadle/tensor/autograd/autograd_context.h"
#include "treadle/tensor/collective/collectives.h"
#include "treadle/train/ddp/any_algorithm.h"
#include "treadle/train/ddp/bucket_limits.h"
#include "treadle/train/ddp/first_difference.h"
#include "treadle/train/ddp/parameter_list.h"
#include "treadle/train/ddp/reducer.h"

namespace treadle::ddp {
namespace {

Status checkBandwidths(const DdpOptions& options, const ProcessGroup& group) {
  if (options.bandwidths.empty()) return {};
  if (options.averageBy == AverageBy::kGroup || options.hook)
    return invalidArgument(
        "DdpOptions::bandwidths are those of a summation service, and with AverageBy::kGroup or a hook there is none");
  std::vector<std::string> machines = group.members();
  for (std::string& server : summation::jobOf(group).services().servers()) machines.push_back(std::move(server));
  for (const auto& [name, bandwidth] : options.bandwidths) {
    if (std::ranges::count(machines, name) == 0)
      return invalidArgument("DdpOptions::bandwidths has '" + name +
                             "', which is neither a rank of the group nor a server of the job");
    TREADLE_RETURN_IF_ERROR(SummationOptions{.bandwidths = {bandwidth}}.validate().withContext(name));
  }
  return {};
}

Status checkAverages(const DdpOptions& options, const ProcessGroup& group) {
  using Form = Compression::Form;
  const bool byService = options.averageBy == AverageBy::kService;
  if (byService && options.hook)
    return invalidArgument("with AverageBy::kService there is no hook, and a hook is given");
  TREADLE_RETURN_IF_ERROR(checkBandwidths(options, group));
  const Form form = options.compression.form;
  if (form == Form::kNone) return {};
  if (!byService)
    return invalidArgument(
        "DdpOptions::compression is that of a summation service: give AverageBy::kService, or for averages of the "
        "group a hook, such as CastHook");
  if (form == Form::kFloat16 || form == Form::kBFloat16) return options.compression.validate();
  return invalidArgument(std::string("DdpOptions::compression is ") + nameOf(form) +
                         ", which would hold back gradients of passes that fail: use float16 or bfloat16, or for "
                         "averages of the group a TopKHook or a PowerSgdHook");
}

// Binds the hook, and describes it. A rank whose hook refuses its replica takes part in the comparison all the same:
// the others would wait for it.
Result<std::string> boundHook(const DdpOptions& options, const torch::nn::Module& module,
                              const ProcessGroup& group) try {
  TREADLE_RETURN_IF_ERROR(checkAverages(options, group));
  if (!options.hook) return std::string("none");
  bindHook(*options.hook, ParameterList(module), group);
  return options.hook->description();
} catch (...) {
  return statusOfCurrentException("DdpOptions::hook");
}

// So that other numbers have other texts.
std::string digitsOf(double number) {
  std::array<char, 32> text{};
  return {text.data(), std::to_chars(text.data(), text.data() + text.size(), number).ptr};
}

std::vector<std::string> settingsOf(const DdpOptions& options, const ParameterList& list, const BucketLimits& limits,
                                    const Result<group::Algorithm>& algorithm, const Result<std::string>& hook,
                                    bool isRebind) {
  std::vector<std::string> settings = {
      textOf(limits) + (options.buckets.bytes ? "" : ", as the network needs them"),
      std::string("start ") + nameOf(options.start),
      std::string("buffers ") + nameOf(options.buffers),
      std::string("divisor ") + nameOf(options.divisor),
      std::string("unusedParameters ") + nameOf(options.unusedParameters),
      std::string("averageBy ") + nameOf(options.averageBy),
      std::string("compression ") + nameOf(options.compression.form),
      std::string("overlapForward ") + (options.overlapForward ? "true" : "false"),
      "hook " + (hook.ok() ? *hook : "that cannot be used: " + hook.status().message())};
  for (std::string& line : OptimizerInBackward::linesOf(options.optimizerInBackward.get(), list))
    settings.push_back(std::move(line));
  if (!isRebind)
    for (std::string& line : OptimizerInBackward::optionLinesOf(options.optimizerInBackward.get()))
      settings.push_back(std::move(line));
  for (const auto& [name, bandwidth] : options.bandwidths)
    settings.push_back("bandwidths with " + digitsOf(bandwidth) + " of '" + name + "' next");
  for (const std::string& name : options.bucketOrder) settings.push_back("bucketOrder with '" + name + "' next");
  for (std::string& setting : settings) setting = "DdpOptions::" + setting;
  settings.insert(settings.begin() + 1, textOf(algorithm));  // behind the limits, on which it depends
  return settings;
}

void backwardOf(const at::Tensor& loss, AutogradContext* context) {
  context == nullptr ? loss.backward() : context->backward({loss});
}

}  // namespace

NoSync::NoSync(std::shared_ptr<Reducer> reducer) : reducer_(std::move(reducer)) { reducer_->suspend(); }

NoSync::~NoSync() {
  if (reducer_) reducer_->resume();
}

void bindHook(CommHook& hook, const ParameterList& list, const ProcessGroup& group) {
  std::vector<HookParameter> parameters;
  for (size_t i = 0; i < list.trained().size(); ++i) parameters.push_back({list.trainedNames()[i], list.trained()[i]});
  hook.bind(group, parameters);
}

void compareReplicas(const torch::nn::Module& module, const ProcessGroup& group, const DdpOptions& options,
                     bool isRebind) {
  Result<std::string> hook = boundHook(options, module, group);
  if (isRebind && hook.ok()) hook = std::string("as it was");
  const BucketLimits limits = limitsFor(group, options.buckets);
  const ParameterList list(module);
  const Result<group::Algorithm> algorithm = algorithmOfAverages(group, list.trained(), limits);
  checkStructure(module, group, settingsOf(options, list, limits, algorithm, hook, isRebind));
  throwIfError(hook.status());
  throwIfError(algorithm.status());
}

void compareOptimizers(const ProcessGroup& group, const DdpOptions& options) {
  const auto lines = OptimizerInBackward::optionLinesOf(options.optimizerInBackward.get());
  if (lines.empty()) return;  // on all ranks
  if (const auto difference = firstDifference(group, lines))
    raise(invalidArgument("the options of the replicas' optimizers are not alike: " + *difference));
}

void startReplicas(const torch::nn::Module& module, const ProcessGroup& group, const DdpOptions& options) {
  compareReplicas(module, group, options, /*isRebind=*/false);
  startValues(module, group, options.start);
}

std::shared_ptr<Reducer> makeReducer(const torch::nn::Module& module, const ProcessGroup& group,
                                     const DdpOptions& options, HookClaim claim) {
  std::shared_ptr<CommHook> hook = options.hook;
  if (!hook) hook = makeAverageHook(ParameterList(module), group, options);
  return std::make_shared<Reducer>(module, group, options, hook, std::move(claim));
}

void checkForward(const Reducer& reducer) { reducer.checkForward(); }

void awaitAverages(Reducer& reducer, const torch::nn::Module* used) {
  used == nullptr ? reducer.awaitAverages() : reducer.awaitAverages(*used);
}

void awaitAtEnd(Reducer& reducer) noexcept try { reducer.awaitAverages(); } catch (...) {
}

void setWeight(Reducer& reducer, double weight) { reducer.setWeight(weight); }

std::vector<std::string> bucketOrder(Reducer& reducer) { return reducer.bucketOrder(); }

DdpStats statsOf(Reducer& reducer) { return reducer.stats(); }

DdpState stateOf(Reducer& reducer) { return reducer.state(); }

size_t pendingPasses(Reducer& reducer) { return reducer.pendingPasses(); }

at::Tensor emptyLoss(const Reducer& reducer) { return reducer.emptyLoss(); }

void skipPass(Reducer& reducer, AutogradContext* context) {
  reducer.dropWeight();  // it is that of a batch which this rank does not have
  backwardOf(reducer.emptyLoss(), context);
}

void synchronize(Reducer& reducer, AutogradContext* context) {
  reducer.checkAverages("synchronize()");
  backwardOf(reducer.emptyLoss(), context);
}

bool agreeToSkip(Reducer& reducer, const ProcessGroup& group, bool wantsToSkip) {
  reducer.checkBetweenPasses("agreeToSkip");
  // A tensor, which the all-reduce keeps alive: a thread that must not wait leaves at once.
  at::Tensor anyWants = at::full({1}, wantsToSkip ? 1 : 0, at::kByte);
  allReduce(byAnyAlgorithm(group), anyWants, ReduceOp::kMax).wait();
  return anyWants.item<uint8_t>() != 0;
}

void verifyReplicas(Reducer& reducer, const torch::nn::Module& module, const ProcessGroup& group, bool buffers) {
  reducer.checkBetweenPasses("verifyReplicas");
  checkValues(module, group, buffers);
}

}  // namespace treadle::ddp

#include "treadle/train/ddp/grad_scaler.h"

#include <ATen/ops/mul.h>
#include <ATen/ops/scalar_tensor.h>
#include <torch/csrc/autograd/grad_mode.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <exception>
#include <limits>
#include <set>

#include "treadle/tensor/optim/unscale.h"
#include "treadle/train/ddp/of_all_ranks.h"

namespace treadle {
namespace {

constexpr int64_t kPlainPass = -1;  // in place of a context's id
// Below it, 1 / scale may be infinite and a lowered scale may become 0.
constexpr float kSmallestScale = std::numeric_limits<float>::min();
// Ranks compare counts as float64. More steps than any program makes.
constexpr int64_t kLargestCount = int64_t{1} << 53;

const char* const kScale = "grad_scaler.scale";
const char* const kGrowthTracker = "grad_scaler.growth_tracker";
const char* const kSkipsInARow = "grad_scaler.skips_in_a_row";

Status check(const GradScalerOptions& options) {
  const auto scale = static_cast<float>(options.initialScale);
  if (!std::isfinite(scale) || !(options.minScale >= kSmallestScale) || !(options.initialScale >= options.minScale))
    return invalidArgument(
        "GradScalerOptions: initialScale must be a finite float32 and at least minScale, and minScale at least "
        "1.2e-38, the smallest normal float32");
  if (!(options.growthFactor > 1) || !(options.backoffFactor > 0 && options.backoffFactor < 1))
    return invalidArgument("GradScalerOptions: growthFactor must be above 1, backoffFactor between 0 and 1");
  if (options.growthInterval < 1 || options.maxSkipsInARow < 1)
    return invalidArgument("GradScalerOptions: growthInterval and maxSkipsInARow must be at least 1");
  return {};
}

// Each gradient once, also where two parameters share it.
std::vector<at::Tensor> gradientsOf(const torch::optim::Optimizer& optimizer) {
  std::vector<at::Tensor> gradients;
  std::set<const c10::TensorImpl*> known;
  for (const torch::optim::OptimizerParamGroup& group : optimizer.param_groups())
    for (const at::Tensor& parameter : group.params())
      if (const at::Tensor& gradient = parameter.grad();
          gradient.defined() && known.insert(gradient.unsafeGetTensorImpl()).second)
        gradients.push_back(gradient);
  return gradients;
}

bool unscaleHere(const torch::optim::Optimizer& optimizer, double inverse) {
  const torch::autograd::AutoGradMode noGrad(false);
  std::vector<at::Tensor> gradients = gradientsOf(optimizer);
  for (const at::Tensor& gradient : gradients) optim::checkUnscalable(gradient);
  bool allFinite = true;
  for (at::Tensor& gradient : gradients) {
    gradient.mul_(inverse);
    allFinite = optim::isFinite(gradient) && allFinite;
  }
  return allFinite;
}

// Values that must be the same on all ranks.
constexpr std::array kNames = {"scale",    "growthFactor",   "backoffFactor", "growthInterval",
                               "minScale", "maxSkipsInARow", "growthTracker", "skipsInARow"};
struct Agreed {
  std::array<double, kNames.size()> values = {};
  uint64_t failed = 0;
};

void raiseFirstDifference(const std::vector<Agreed>& all) {
  for (size_t rank = 0; rank < all.size(); ++rank)
    if (all[rank].failed != 0)
      raise(failedPrecondition("rank " + std::to_string(rank) + " of the group has a GradScaler that is not valid"));
  for (size_t i = 0; i < kNames.size(); ++i)
    for (size_t rank = 1; rank < all.size(); ++rank)
      if (all[rank].values[i] != all[0].values[i])
        raise(invalidArgument(std::string("ranks have a GradScaler with another ") + kNames[i] + ": " +
                              std::to_string(all[0].values[i]) + " on rank 0, " + std::to_string(all[rank].values[i]) +
                              " on rank " + std::to_string(rank)));
}

}  // namespace

GradScaler::GradScaler(GradScalerOptions options) : GradScaler(ProcessGroup(), options) {}

GradScaler::GradScaler(ProcessGroup group, GradScalerOptions options)
    : group_(std::move(group)), options_(options), state_{.scale = static_cast<float>(options.initialScale)} {
  agree(state_, check(options_));
}

// A rank whose own part is not valid takes part all the same: the others would wait for it.
void GradScaler::agree(const State& state, const Status& own) const {
  if (!group_.valid()) return throwIfError(own);
  const Agreed mine = {
      {state.scale, options_.growthFactor, options_.backoffFactor, static_cast<double>(options_.growthInterval),
       options_.minScale, static_cast<double>(options_.maxSkipsInARow), static_cast<double>(state.growthTracker),
       static_cast<double>(state.skipsInARow)},
      own.ok() ? 0U : 1U};
  const std::vector<Agreed> all = ddp::ofAllRanks(group_, mine);
  throwIfError(own);
  raiseFirstDifference(all);
}

at::Tensor GradScaler::scale(const at::Tensor& loss) const {
  if (!loss.defined() || !at::isFloatingType(loss.scalar_type()))
    raise(invalidArgument("a GradScaler scales a loss of floating-point numbers"));
  return at::mul(loss, at::scalar_tensor(state_.scale, at::kFloat));
}

// As torch: 1 / scale is rounded once.
double GradScaler::inverse() const { return static_cast<float>(1.0 / static_cast<double>(state_.scale)); }

bool GradScaler::unscaleEverywhere(DistributedOptimizer& optimizer, const AutogradContext& context) const {
  enum class Outcome : uint8_t { kFinite, kNotFinite, kFailed };
  auto own = Outcome::kFailed;
  std::exception_ptr failure;
  try {
    own = optimizer.unscaleGradients(context, inverse()) ? Outcome::kFinite : Outcome::kNotFinite;
  } catch (...) {
    failure = std::current_exception();
  }
  std::vector<Outcome> all = {own};
  if (group_.valid()) all = ddp::ofAllRanks(group_, own);
  if (failure) std::rethrow_exception(failure);
  for (size_t rank = 0; rank < all.size(); ++rank)
    if (all[rank] == Outcome::kFailed)
      raise(failedPrecondition("rank " + std::to_string(rank) + " of the group has failed to unscale its gradients"));
  return std::ranges::all_of(all, [](Outcome one) { return one == Outcome::kFinite; });
}

template <class Unscale>
bool GradScaler::unscaleOnce(Key key, Unscale unscale) {
  if (auto found = found_.find(key); found != found_.end())
    raise(failedPrecondition(found->second.stepped
                                 ? "unscale() after step(); call update() first"
                                 : "these gradients have been unscaled since the last update(); call that first"));
  const bool finite = unscale();
  found_[key] = {.finite = finite};
  return finite;
}

template <class Unscale, class Step>
bool GradScaler::stepOnce(Key key, Unscale unscale, Step step) {
  auto found = found_.find(key);
  if (found == found_.end()) {
    unscaleOnce(key, unscale);
    found = found_.find(key);
  }
  // Also if the step fails: some parameters may have been stepped by then.
  if (std::exchange(found->second.stepped, true))
    raise(failedPrecondition("a second step() of an optimizer since the last update(); call that first"));
  if (found->second.finite) step();
  return found->second.finite;
}

bool GradScaler::unscale(torch::optim::Optimizer& optimizer) {
  return unscaleOnce({&optimizer, kPlainPass}, [&] { return unscaleHere(optimizer, inverse()); });
}

bool GradScaler::unscale(DistributedOptimizer& optimizer, const AutogradContext& context) {
  return unscaleOnce({&optimizer.groups(), context.id()}, [&] { return unscaleEverywhere(optimizer, context); });
}

bool GradScaler::step(torch::optim::Optimizer& optimizer) {
  return stepOnce(
      {&optimizer, kPlainPass}, [&] { return unscaleHere(optimizer, inverse()); }, [&] { optimizer.step(); });
}

bool GradScaler::step(DistributedOptimizer& optimizer, const AutogradContext& context) {
  return stepOnce(
      {&optimizer.groups(), context.id()}, [&] { return unscaleEverywhere(optimizer, context); },
      [&] { optimizer.step(context); });
}

void GradScaler::update() {
  if (found_.empty()) raise(failedPrecondition("update() before any optimizer was unscaled or stepped"));
  const bool allFinite = std::ranges::all_of(found_, [](const auto& entry) { return entry.second.finite; });
  found_.clear();
  if (!allFinite) {
    state_.scale = static_cast<float>(std::max(state_.scale * options_.backoffFactor, options_.minScale));
    state_.growthTracker = 0;
    if (++state_.skipsInARow >= options_.maxSkipsInARow)
      raise(failedPrecondition(std::to_string(state_.skipsInARow) +
                               " steps in a row had gradients that are infinite or NaN, down to a loss scale of " +
                               std::to_string(state_.scale) + "; the cause is not the scale"));
    return;
  }
  state_.skipsInARow = 0;
  if (++state_.growthTracker < options_.growthInterval) return;
  state_.growthTracker = 0;
  const auto grown = static_cast<float>(state_.scale * options_.growthFactor);
  if (std::isfinite(grown)) state_.scale = grown;
}

OptimizerState GradScaler::state() const {
  return {{kScale, optim::asTensor(static_cast<double>(state_.scale))},
          {kGrowthTracker, optim::asTensor(state_.growthTracker)},
          {kSkipsInARow, optim::asTensor(state_.skipsInARow)}};
}

GradScaler::State GradScaler::parsed(OptimizerState named) {
  State state;
  state.scale = static_cast<float>(optim::take(named, kScale, double{}));
  state.growthTracker = optim::take(named, kGrowthTracker, int64_t{});
  state.skipsInARow = optim::take(named, kSkipsInARow, int64_t{});
  optim::refuseRest(named);
  if (!std::isfinite(state.scale) || !(state.scale >= kSmallestScale))
    raise(invalidArgument("a GradScaler was given a scale of " + std::to_string(state.scale)));
  if (std::max(state.growthTracker, state.skipsInARow) > kLargestCount)
    raise(invalidArgument("a GradScaler was given a count of steps above 2^53"));
  return state;
}

void GradScaler::load(const OptimizerState& state) {
  State loaded;
  Status own;
  try {
    loaded = parsed(state);
  } catch (...) {
    own = statusOfCurrentException("GradScaler::load");
  }
  agree(loaded, own);
  state_ = loaded;
  found_.clear();
}

}  // namespace treadle

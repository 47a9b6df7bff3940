#include "treadle/train/ddp/optimizer_in_backward.h"

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <tuple>
#include <unordered_set>
#include <utility>

#include "treadle/core/base/error.h"
#include "treadle/tensor/optim/option_fields.h"

namespace treadle::ddp {
namespace {

std::vector<at::Tensor> steppedBy(const torch::optim::Optimizer& optimizer) {
  std::vector<at::Tensor> stepped;
  for (const torch::optim::OptimizerParamGroup& group : optimizer.param_groups())
    stepped.insert(stepped.end(), group.params().begin(), group.params().end());
  return stepped;
}

bool areSame(const std::vector<at::Tensor>& some, const std::vector<at::Tensor>& others) {
  return std::ranges::equal(some, others, [](const at::Tensor& a, const at::Tensor& b) { return a.is_same(b); });
}

// Marks of those trained. Frozen ones may be among them: clearGradients() leaves none a gradient.
std::vector<bool> marksOf(const std::vector<at::Tensor>& stepped, const ParameterList& list) {
  std::unordered_set<const c10::TensorImpl*> frozen;
  for (const at::Tensor& parameter : list.frozen()) frozen.insert(parameter.unsafeGetTensorImpl());
  std::vector<bool> marks(list.trained().size());
  for (const at::Tensor& parameter : stepped) {
    if (frozen.contains(parameter.unsafeGetTensorImpl())) continue;
    const std::optional<size_t> place = list.placeOf(parameter);
    if (!place)
      raise(invalidArgument(
          "DdpOptions::optimizerInBackward has a parameter that is none of the module: give it those of the module "
          "alone, as it makes several steps in each pass"));
    if (marks[*place])
      raise(invalidArgument("DdpOptions::optimizerInBackward has parameter " + list.nameOf(*place) +
                            " twice, and would step it twice: Module::parameters() has a shared one once for each "
                            "module, so give each tensor once"));
    marks[*place] = true;
  }
  return marks;
}

template <class Kind>
bool is(const torch::optim::Optimizer& optimizer) {
  return dynamic_cast<const Kind*>(&optimizer) != nullptr;
}

// Of an average, or of a tensor that an optimizer keeps: how many sparse dimensions; nothing if it is dense.
using Layout = std::optional<int64_t>;

Layout layoutOf(const at::Tensor& tensor) { return tensor.is_sparse() ? Layout(tensor.sparse_dim()) : std::nullopt; }

std::string inWords(Layout layout) {
  return layout ? "sparse, of " + std::to_string(*layout) + " sparse dimensions" : "dense";
}

// Null: it has made no step by momentum for it.
const at::Tensor* momentumOf(const torch::optim::Optimizer& optimizer, const at::Tensor& parameter) {
  const auto found = optimizer.state().find(parameter.unsafeGetTensorImpl());
  if (found == optimizer.state().end()) return nullptr;
  const at::Tensor& momentum = static_cast<const torch::optim::SGDParamState&>(*found->second).momentum_buffer();
  return momentum.defined() ? &momentum : nullptr;
}

// It keeps the layout of the first gradient. libtorch adds sparse tensors to dense ones, but not dense to sparse ones,
// and no sparse ones of other dimensions. With Nesterov's rule it adds both ways.
std::string whyNotStepped(const torch::optim::SGD& sgd, const torch::optim::SGDOptions& options,
                          const at::Tensor& parameter, Layout average) {
  if (average && options.weight_decay() != 0) return "it has weight decay, which adds dense tensors to sparse ones";
  const at::Tensor* momentum = options.momentum() != 0 ? momentumOf(sgd, parameter) : nullptr;
  if (momentum == nullptr || layoutOf(*momentum) == average) return "";
  if (!momentum->is_sparse() && !options.nesterov()) return "";
  return "its momentum is " + inWords(layoutOf(*momentum));
}

// The shortest text that reads back as the same number.
std::string inWords(double number) {
  std::array<char, 32> text{};
  return {text.data(), std::to_chars(text.data(), text.data() + text.size(), number).ptr};
}
std::string inWords(bool value) { return value ? "true" : "false"; }
std::string inWords(const std::tuple<double, double>& pair) {
  return "(" + inWords(std::get<0>(pair)) + ", " + inWords(std::get<1>(pair)) + ")";
}

// Null: they are of another class.
template <class Options>
std::string inWords(const Options* options) {
  std::string words;
  if (options == nullptr) return words;
  // Only read through.
  optim::Fields<Options>::each(const_cast<Options&>(*options), [&](const char* name, const auto& field) {
    words += (words.empty() ? "" : ", ") + std::string(name) + " " + inWords(field);
  });
  return words;
}

// Empty: they are of a class of the program's own.
std::string inWords(const torch::optim::OptimizerOptions& options) {
  using namespace torch::optim;
  return inWords(dynamic_cast<const SGDOptions*>(&options)) + inWords(dynamic_cast<const AdamOptions*>(&options)) +
         inWords(dynamic_cast<const AdamWOptions*>(&options)) + inWords(dynamic_cast<const AdagradOptions*>(&options)) +
         inWords(dynamic_cast<const RMSpropOptions*>(&options));
}

template <class Options>
bool swapIfBothAre(torch::optim::OptimizerOptions& a, torch::optim::OptimizerOptions& b) {
  auto* first = dynamic_cast<Options*>(&a);
  auto* second = dynamic_cast<Options*>(&b);
  if (first == nullptr || second == nullptr) return false;
  std::swap(*first, *second);
  return true;
}

// Of the same class of libtorch.
void swapValues(torch::optim::OptimizerOptions& a, torch::optim::OptimizerOptions& b) {
  using namespace torch::optim;
  static_cast<void>(swapIfBothAre<SGDOptions>(a, b) || swapIfBothAre<AdamOptions>(a, b) ||
                    swapIfBothAre<AdamWOptions>(a, b) || swapIfBothAre<AdagradOptions>(a, b) ||
                    swapIfBothAre<RMSpropOptions>(a, b));
}

bool isOfLibtorch(const torch::optim::OptimizerOptions& options) { return !inWords(options).empty(); }

// Why a step of libtorch's optimizer throws at an average of this layout. Empty: it does not.
std::string whyNotStepped(const torch::optim::Optimizer& optimizer, const torch::optim::OptimizerParamGroup& group,
                          const at::Tensor& parameter, Layout average) {
  if (const auto* sgd = dynamic_cast<const torch::optim::SGD*>(&optimizer))
    return whyNotStepped(*sgd, static_cast<const torch::optim::SGDOptions&>(group.options()), parameter, average);
  if (!average) return "";
  if (is<torch::optim::Adagrad>(optimizer))
    return static_cast<const torch::optim::AdagradOptions&>(group.options()).weight_decay() == 0
               ? ""
               : "it has weight decay";
  const bool takesDenseAlone =
      is<torch::optim::Adam>(optimizer) || is<torch::optim::AdamW>(optimizer) || is<torch::optim::RMSprop>(optimizer);
  return takesDenseAlone ? "it steps by dense ones alone" : "";
}

}  // namespace

OptimizerInBackward::OptimizerInBackward(std::shared_ptr<torch::optim::Optimizer> optimizer, const ParameterList& list)
    : optimizer_(std::move(optimizer)), list_(list), isStepped_(list.trained().size()) {
  if (!exists()) return;
  if (is<torch::optim::LBFGS>(*optimizer_))
    raise(invalidArgument(
        "DdpOptions::optimizerInBackward cannot be LBFGS, whose step evaluates the model several times"));
  parameters_ = steppedBy(*optimizer_);
  isStepped_ = marksOf(parameters_, list_);
}

OptimizerInBackward::~OptimizerInBackward() = default;

void OptimizerInBackward::keepOptions() {
  kept_.clear();
  for (const torch::optim::OptimizerParamGroup& group : optimizer_->param_groups())
    kept_.push_back(isOfLibtorch(group.options()) ? group.options().clone() : nullptr);
}

void OptimizerInBackward::forgetOptions() { kept_.clear(); }

// Objects stay where they are, as a program may refer to them.
void OptimizerInBackward::swapOptions() {
  for (size_t i = 0; i < kept_.size(); ++i)
    if (kept_[i]) swapValues(optimizer_->param_groups()[i].options(), *kept_[i]);
}

std::vector<std::string> OptimizerInBackward::linesOf(const torch::optim::Optimizer* optimizer,
                                                      const ParameterList& list) {
  if (optimizer == nullptr) return {"optimizerInBackward none"};
  std::vector<std::string> lines = {"optimizerInBackward " + demangled(typeid(*optimizer).name())};
  for (const torch::optim::OptimizerParamGroup& group : optimizer->param_groups()) {
    lines.push_back("optimizerInBackward with a new group next");
    for (const at::Tensor& parameter : group.params())
      if (const std::optional<size_t> place = list.placeOf(parameter))
        lines.push_back("optimizerInBackward with '" + list.trainedNames()[*place] + "' next");
  }
  return lines;
}

std::vector<std::string> OptimizerInBackward::optionLinesOf(const torch::optim::Optimizer* optimizer) {
  std::vector<std::string> lines;
  if (optimizer == nullptr) return lines;
  for (const torch::optim::OptimizerParamGroup& group : optimizer->param_groups()) {
    const std::string options = inWords(group.options());
    lines.push_back("optimizerInBackward with a group of " + (options.empty() ? "options of its own" : options));
  }
  return lines;
}

Status OptimizerInBackward::checkMayStep(bool isDistributed) const {
  if (!exists()) return {};
  if (isDistributed)
    return failedPrecondition(
        "a distributed backward pass leaves gradients in its context, so DdpOptions::optimizerInBackward cannot step: "
        "call loss.backward(), or use a DistributedOptimizer after the pass");
  if (areSame(steppedBy(*optimizer_), parameters_)) return {};
  return failedPrecondition(
      "DdpOptions::optimizerInBackward has other parameters than when DistributedDataParallel was constructed: "
      "construct it again after parameter groups are added");
}

Status OptimizerInBackward::checkMayStep(const ExactChannel& channel) const {
  if (!exists()) return {};
  for (const torch::optim::OptimizerParamGroup& group : optimizer_->param_groups())
    for (const at::Tensor& parameter : group.params()) {
      const std::optional<size_t> place = list_.placeOf(parameter);
      if (!place || !channel.used(*place)) continue;
      const Layout average = channel.isDense(*place) ? Layout() : Layout(channel.sparseDims(*place));
      const std::string why = whyNotStepped(*optimizer_, group, parameter, average);
      if (!why.empty())
        return invalidArgument("DdpOptions::optimizerInBackward, a " + demangled(typeid(*optimizer_).name()) +
                               ", cannot step parameter " + list_.nameOf(*place) + ", whose average is " +
                               inWords(average) + ": " + why +
                               ". Nothing is stepped. Use another optimizer, or gradients of one layout in all passes");
    }
  return {};
}

void OptimizerInBackward::clearGradients() {
  for (const torch::optim::OptimizerParamGroup& group : optimizer_->param_groups())
    for (const at::Tensor& parameter : group.params()) parameter.mutable_grad() = at::Tensor();
}

bool OptimizerInBackward::stepsAll() const {
  return std::all_of(isStepped_.begin(), isStepped_.end(), [](bool isStepped) { return isStepped; });
}

bool OptimizerInBackward::steps(const std::vector<size_t>& parameters) const {
  return std::any_of(parameters.begin(), parameters.end(), [this](size_t one) { return isStepped_[one]; });
}

Status OptimizerInBackward::step(const std::vector<size_t>& parameters) try {
  {
    swapOptions();
    const std::shared_ptr<void> back(nullptr, [this](void*) { swapOptions(); });
    optimizer_->step();
  }
  for (const size_t parameter : parameters)
    if (isStepped_[parameter]) list_.trained()[parameter].mutable_grad() = at::Tensor();
  return {};
} catch (...) {
  constexpr const char* kWhat = "DdpOptions::optimizerInBackward";
  return statusOfCurrentException(kWhat).withContext(kWhat);
}

}  // namespace treadle::ddp

#pragma once
// What libtorch's optimizers keep for a parameter (momentum, Adam's moments, ...) field by field, by libtorch's names,
// and as named tensors: "state.3.exp_avg" is that of parameter 3. Options likewise: "param_groups.0.lr". Numbers become
// tensors of one element, so that a state is one map, which travels and is written to a file as it is.
//
// Functions without state, for an optimizer that nobody steps meanwhile.

#include "treadle/tensor/optim/named_values.h"
#include "treadle/tensor/optim/option_fields.h"

namespace treadle::optim {

// The class of what an optimizer keeps for a parameter, as `type`. Its tensors have the parameter's shape.
template <class Optimizer>
struct StateOf;
template <>
struct StateOf<torch::optim::SGD> : std::type_identity<torch::optim::SGDParamState> {};
template <>
struct StateOf<torch::optim::Adam> : std::type_identity<torch::optim::AdamParamState> {};
template <>
struct StateOf<torch::optim::AdamW> : std::type_identity<torch::optim::AdamWParamState> {};
template <>
struct StateOf<torch::optim::Adagrad> : std::type_identity<torch::optim::AdagradParamState> {};
template <>
struct StateOf<torch::optim::RMSprop> : std::type_identity<torch::optim::RMSpropParamState> {};

// `visit` of a state's field may be told which options need it; others do without.
template <>
struct Fields<torch::optim::SGDParamState> {
  template <class Visit>
  static void each(torch::optim::SGDParamState& state, Visit&& visit) {
    visit("momentum_buffer", state.momentum_buffer());
  }
};

struct AdamStateFields {
  template <class State, class Visit>
  static void each(State& state, Visit&& visit) {
    visit("step", state.step());
    visit("exp_avg", state.exp_avg());
    visit("exp_avg_sq", state.exp_avg_sq());
    visit("max_exp_avg_sq", state.max_exp_avg_sq(), [](const auto& options) { return options.amsgrad(); });
  }
};
template <>
struct Fields<torch::optim::AdamParamState> : AdamStateFields {};
template <>
struct Fields<torch::optim::AdamWParamState> : AdamStateFields {};

template <>
struct Fields<torch::optim::AdagradParamState> {
  template <class Visit>
  static void each(torch::optim::AdagradParamState& state, Visit&& visit) {
    visit("step", state.step());
    visit("sum", state.sum());
  }
};

template <>
struct Fields<torch::optim::RMSpropParamState> {
  template <class Visit>
  static void each(torch::optim::RMSpropParamState& state, Visit&& visit) {
    visit("step", state.step());
    visit("square_avg", state.square_avg());
    visit("momentum_buffer", state.momentum_buffer(), [](const auto& options) { return options.momentum() > 0; });
    visit("grad_avg", state.grad_avg(), [](const auto& options) { return options.centered(); });
  }
};

template <class Optimizer>
concept KeepsNamedState = Named<typename StateOf<Optimizer>::type>;

// Whether all fields of an optimizer's options and state have names, so that they can be saved.
template <class Optimizer, class Options>
inline constexpr bool kCanBeSaved = Named<Options> && KeepsNamedState<Optimizer>;

// ---- options

template <class Options>
void saveOptions(const Options& options, const std::string& prefix, NamedTensors& into) {
  Fields<Options>::each(const_cast<Options&>(options),  // only read through
                        [&](const char* name, const auto& field) { into[prefix + name] = asTensor(field); });
}

// Takes what it uses out of `from`. ArgumentError for one that is missing or no such number.
template <class Options>
Options takeOptions(const std::string& prefix, NamedTensors& from) {
  auto options = blankOptions<Options>();
  Fields<Options>::each(options, [&](const char* name, auto& field) { field = take(from, prefix + name, field); });
  return options;
}

// ---- what is kept for the one parameter that an optimizer has

// Copies. Nothing for a parameter that was never stepped, by most optimizers.
template <class Optimizer>
void saveState(torch::optim::Optimizer& optimizer, const std::string& prefix, NamedTensors& into) {
  using State = typename StateOf<Optimizer>::type;
  auto kept = optimizer.state().find(keyOf(optimizer));
  if (kept == optimizer.state().end()) return;
  Fields<State>::each(dynamic_cast<State&>(*kept->second), [&](const char* name, const auto& field, auto...) {
    if (at::Tensor value = asTensor(field); value.defined()) into[prefix + name] = std::move(value);
  });
}

// Into an optimizer that was just made with these options. Without any name of this prefix it stays as it was made.
// ArgumentError for a name that is missing or unknown, and for a tensor of another shape.
template <class Optimizer, class Options>
void loadState(torch::optim::Optimizer& optimizer, const Options& options, const std::string& prefix,
               const NamedTensors& from) {
  using State = typename StateOf<Optimizer>::type;
  NamedTensors own = withPrefix(from, prefix);
  if (own.empty()) return;
  auto state = std::make_unique<State>();
  const at::Tensor& parameter = parameterOf(optimizer);
  Fields<State>::each(*state, [&](const char* name, auto& field, auto... neededBy) {
    const bool mayLack = (!neededBy(options) || ...);
    if (mayLack && !own.contains(prefix + name)) return;
    if constexpr (std::same_as<std::decay_t<decltype(field)>, at::Tensor>) {
      field = takeLike(own, prefix + name, parameter);
    } else {
      field = take(own, prefix + name, field);
    }
  });
  refuseRest(own);
  optimizer.state()[keyOf(optimizer)] = std::move(state);
}

}  // namespace treadle::optim

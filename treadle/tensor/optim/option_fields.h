#pragma once
// The options of libtorch's optimizers field by field, by libtorch's names, and their codec: all fields in the order
// given here. libtorch's own serialization is not used: it unpickles. Values are not checked here: the optimizer's
// constructor does that at the owner when it is made or loaded, and what it throws comes back; of those that come with
// a step nothing is checked, as in libtorch. Without state; any thread.

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include "treadle/core/rpc/codec.h"

namespace treadle::optim {

// `each(object, visit)` calls visit(name, field) with a reference to each field, in an order that stays.
template <class T>
struct Fields;

// Whether the fields of a T have names.
template <class T>
concept Named = requires { sizeof(Fields<T>); };

template <>
struct Fields<torch::optim::SGDOptions> {
  template <class Visit>
  static void each(torch::optim::SGDOptions& options, Visit&& visit) {
    visit("lr", options.lr());
    visit("momentum", options.momentum());
    visit("dampening", options.dampening());
    visit("weight_decay", options.weight_decay());
    visit("nesterov", options.nesterov());
  }
};

// Adam and AdamW have the same ones; weight decay means something else in each.
struct AdamOptionFields {
  template <class Options, class Visit>
  static void each(Options& options, Visit&& visit) {
    visit("lr", options.lr());
    visit("betas", options.betas());
    visit("eps", options.eps());
    visit("weight_decay", options.weight_decay());
    visit("amsgrad", options.amsgrad());
  }
};
template <>
struct Fields<torch::optim::AdamOptions> : AdamOptionFields {};
template <>
struct Fields<torch::optim::AdamWOptions> : AdamOptionFields {};

template <>
struct Fields<torch::optim::AdagradOptions> {
  template <class Visit>
  static void each(torch::optim::AdagradOptions& options, Visit&& visit) {
    visit("lr", options.lr());
    visit("lr_decay", options.lr_decay());
    visit("weight_decay", options.weight_decay());
    visit("initial_accumulator_value", options.initial_accumulator_value());
    visit("eps", options.eps());
  }
};

template <>
struct Fields<torch::optim::RMSpropOptions> {
  template <class Visit>
  static void each(torch::optim::RMSpropOptions& options, Visit&& visit) {
    visit("lr", options.lr());
    visit("alpha", options.alpha());
    visit("eps", options.eps());
    visit("weight_decay", options.weight_decay());
    visit("momentum", options.momentum());
    visit("centered", options.centered());
  }
};

// To be filled in field by field. libtorch's options are made from a learning rate.
template <class Options>
Options blankOptions() {
  if constexpr (std::default_initializable<Options>) {
    return {};
  } else {
    return Options(0.0);
  }
}

}  // namespace treadle::optim

namespace treadle::rpc {

template <class Options>
  requires(std::derived_from<Options, torch::optim::OptimizerOptions> && optim::Named<Options>)
struct Codec<Options> {
  static void encode(Encoder& encoder, const Options& options) {
    // Only read through: there is one list of the fields, for both directions.
    optim::Fields<Options>::each(const_cast<Options&>(options), [&](const char*, const auto& field) {
      Codec<std::decay_t<decltype(field)>>::encode(encoder, field);
    });
  }
  static Options decode(Decoder& decoder) {
    auto options = optim::blankOptions<Options>();
    optim::Fields<Options>::each(
        options, [&](const char*, auto& field) { field = Codec<std::decay_t<decltype(field)>>::decode(decoder); });
    return options;
  }
  static std::string name() { return demangled(typeid(Options).name()); }
};

}  // namespace treadle::rpc
